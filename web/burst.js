// Eight requests that begin alike, for a first look at the tree.

import { request, settings } from "./server.js";

const SYSTEM = `You answer visitors of a small woodland that is managed as a coppice. Be brief and friendly.
The wood has seven compartments. One is cut each winter, in turn, so that every stool is cut once in seven years. Hazel is cut for
hurdles and bean poles, ash for tool handles, sweet chestnut for fences, and alder along the brook for charcoal. A stool that is cut
close to the ground sends up twenty to sixty shoots from the same roots in spring; by the second summer they stand taller than a
visitor, and by the seventh winter they are as thick as a wrist. The roots may be four hundred years old.
Cutting lets light in. In the first spring after a cut primroses and wood anemones flower, in the second and third bluebells
and foxgloves. Dormice live in the older compartments, nightingales in those of four to six years; nobody enters these from April to
July. Dogs stay on the lead all year. The brook path is closed when the gauge at the footbridge shows more than forty centimetres.
The gate opens at eight and closes at dusk. Guided walks begin at ten on Saturdays from the shed at the north gate and take two
hours. Firewood is sold by the stacked metre at the shed on Fridays. Volunteers meet on the first Sunday of each month and need
boots and gloves; tools are lent.`;

const QUESTIONS = ["When does the gate open?", "How many shoots does a stool send up?", "May my dog run free?", "What is ash cut for?",
  "When can I buy firewood?", "Which flowers come first after a cut?", "Is the brook path open today?", "What should volunteers bring?"];

/** A browser opens six connections at most, so the eight prompts go in one request; to the engine they are eight. */
export async function sendBurst() {
  const prompts = await Promise.all(QUESTIONS.map(async (content) => {
    const body = { messages: [{ role: "system", content: SYSTEM }, { role: "user", content }] };
    return (await (await request("/apply-template", { body })).json()).prompt;
  }));
  const body = { prompt: prompts, max_tokens: 48, add_special_tokens: false };
  if (settings.salt) body.cache_salt = settings.salt;
  await request("/v1/completions", { body });
}
