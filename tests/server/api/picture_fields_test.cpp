// Pictures in each API's words.
#include "server/api/base/picture_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/api/anthropic/anthropic_dialect.h"
#include "server/api/llama/llama_dialect.h"
#include "server/api/openai/openai_request.h"
#include "server/api/responses/responses_items.h"
#include "server/base/request_error.h"

namespace coppice::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Bytes = std::vector<std::uint8_t>;

TEST(Base64Test, IsReadInBothAlphabets) {
  EXPECT_EQ(from_base64("AP9+/w=="), (Bytes{0, 255, 126, 255}));
  EXPECT_EQ(from_base64("AP9-_w"), (Bytes{0, 255, 126, 255}));
  EXPECT_EQ(from_base64(" AP9+\r\n/w==\n"), (Bytes{0, 255, 126, 255}));
  EXPECT_EQ(from_base64(""), Bytes());
  for (const char* wrong : {"A", "AAAAA", "AA*A", "A=AA", "\xc3\xa4"})
    EXPECT_EQ(from_base64(wrong), std::nullopt) << wrong;
}

PromptPictures::File openai_picture(const std::string& part, int most = 2) {
  const JsonObject json = parse_body(R"({"m": [{"role": "user", "content": [)" + part + "]}]}");
  return parse_messages(json.at("m"), most).at(0).content.at(0).picture;
}

std::string refusal(const std::string& part, int most = 2) {
  try {
    openai_picture(part, most);
  } catch (const RequestError& error) {
    EXPECT_EQ(error.status(), 400);
    return error.field() + ": " + error.what();
  }
  return "none";
}

TEST(PictureFieldsTest, OpenAisParts) {
  const auto file = openai_picture(R"({"type": "image_url", "image_url": {"url": "data:image/png;base64,AP8="}})");
  ASSERT_TRUE(file);
  EXPECT_THAT(file->bytes, ElementsAre(0, 255));
  EXPECT_EQ(file->detail, vision::Detail::kAuto);
  EXPECT_EQ(file->field, "messages[0].content[0].image_url.url");
  const auto low =
      openai_picture(R"({"type": "image_url", "image_url": {"url": "data:;base64,AP8=", "detail": "low"}})");
  EXPECT_EQ(low->detail, vision::Detail::kLow);
  EXPECT_NE(low->marker, file->marker);
  EXPECT_TRUE(openai_picture(R"({"type": "image_url", "image_url": "data:image/png;base64,AP8="})"));
  EXPECT_TRUE(openai_picture(R"({"type": "image_url", "image_url": "DATA:Image/PNG;BASE64,AP8="})"));
}

TEST(PictureFieldsTest, AUrlIsFetchedLater) {
  for (const char* url : {"https://a.b/c", "HTTP://a.b/c"}) {
    const auto file = openai_picture(R"({"type": "image_url", "image_url": {"url": ")" + std::string(url) +
                                     R"(", "detail": "low"}})");
    ASSERT_TRUE(file);
    EXPECT_EQ(file->url, url);
    EXPECT_TRUE(file->bytes.empty());
    EXPECT_EQ(file->detail, vision::Detail::kLow);
  }
}

TEST(PictureFieldsTest, SaysWhatIsRefused) {
  const std::string good = R"({"type": "image_url", "image_url": {"url": "data:image/png;base64,AP8="}})";
  EXPECT_THAT(refusal(good, 0), HasSubstr("--mmproj"));
  EXPECT_THAT(refusal(good + "," + good + "," + good), HasSubstr("at most 2 images"));
  EXPECT_THAT(refusal(R"({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}})"),
              HasSubstr("an http or https URL"));
  EXPECT_THAT(refusal(R"({"type": "image_url", "image_url": {"url": "data:video/mp4;base64,AP8="}})"),
              HasSubstr("video"));
  EXPECT_THAT(refusal(R"({"type": "image_url", "image_url": {"url": "data:image/png;base64,"}})"), HasSubstr("base64"));
  EXPECT_THAT(refusal(R"({"type": "image_url", "image_url": 3})"), HasSubstr("messages[0].content[0].image_url"));
  EXPECT_THAT(refusal(R"({"type": "input_image", "file_id": "f"})"), HasSubstr("file_id"));
  EXPECT_THAT(refusal(R"({"type": "input_audio"})"), HasSubstr("audio is not supported"));
  EXPECT_THAT(refusal(R"({"type": "file"})"), HasSubstr("only text and images"));
}

TEST(PictureFieldsTest, AToolsResultKeepsItsLineWhereNothingIsSeen) {
  const JsonObject json = parse_body(
      R"({"m": [{"role": "tool", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AP8="}}]}]})");
  EXPECT_THAT(parse_messages(json.at("m")).at(0).content.at(0).text, HasSubstr("An image was here"));
  EXPECT_TRUE(parse_messages(json.at("m"), 1).at(0).content.at(0).picture);
}

TEST(PictureFieldsTest, AnthropicsBlocksAndResults) {
  const std::string image =
      R"({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AP8="}})";
  const JsonObject json =
      parse_body(R"({"max_tokens": 5, "messages": [{"role": "user", "content": [)" + image +
                 R"(]}, {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
      {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [)" +
                 image + "]}]}]}");
  RequestLimits limits{.n_vocab = 10, .most_pictures = 2};
  const GenerationRequest r = AnthropicDialect().parse(json, limits);
  ASSERT_EQ(r.messages.size(), 3U);
  EXPECT_TRUE(r.messages[0].content.at(0).picture);
  EXPECT_EQ(r.messages[2].content.at(0).picture->field, "messages[2].content[0].content[0].source.data");
}

TEST(PictureFieldsTest, ResponsesKeepThem) {
  const JsonObject item = parse_body(
      R"({"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "data:image/png;base64,AP8="}]})");
  Turns turns(1);
  turns.add(JsonFields(item));
  EXPECT_TRUE(turns.take().at(0).content.at(1).picture);
  const ConversationItem kept = kept_item(item, true);
  Turns again(1);
  const JsonObject parsed = parse_body(kept.json);
  again.add(JsonFields(parsed));
  EXPECT_THAT(again.take().at(0).content.at(1).picture->bytes, ElementsAre(0, 255));
}

TEST(PictureFieldsTest, LlamasMarkers) {
  RequestLimits limits{.n_vocab = 10, .most_pictures = 4};
  const auto parsed = [&](const std::string& text, const std::string& data) {
    return LlamaDialect()
        .parse(parse_body(R"({"prompt": {"prompt_string": ")" + text + R"(", "multimodal_data": [)" + data + "]}}"),
               limits)
        .prompts.at(0);
  };
  const auto parts = std::get<PromptParts>(parsed("<__media__>a<__media__>", R"("AP8=", "AA==")"));
  ASSERT_EQ(parts.size(), 5U);
  EXPECT_EQ(std::get<std::string>(parts[0]), "");
  EXPECT_TRUE(std::get<PromptPictures::File>(parts[1]));
  EXPECT_EQ(std::get<std::string>(parts[2]), "a");
  EXPECT_EQ(std::get<std::string>(parsed("a<__media__>", "")), "a<__media__>");
  EXPECT_THROW(parsed("a", R"("AP8=")"), RequestError);
  EXPECT_THROW(parsed("<__media__><__media__>", R"("AP8=")"), RequestError);
}

TEST(PromptPicturesTest, TextsAreCutAtTheirMarkersOnly) {
  const auto file = std::make_shared<const PictureFile>(Bytes{1}, vision::Detail::kAuto, "messages[0]");
  const auto other = std::make_shared<const PictureFile>(Bytes{1}, vision::Detail::kAuto, "messages[1]");
  PromptPictures pictures(nullptr, "");
  pictures.add(file);
  const std::string text = "a" + other->marker + "__picture_" + file->marker + "b" + file->marker;
  const auto cuts = pictures.cuts(text);
  ASSERT_EQ(cuts.size(), 3U);
  EXPECT_EQ(text.substr(cuts[0].begin, cuts[0].end - cuts[0].begin), "a" + other->marker + "__picture_");
  EXPECT_EQ(cuts[0].file, file);
  EXPECT_EQ(text.substr(cuts[1].begin, cuts[1].end - cuts[1].begin), "b");
  EXPECT_EQ(cuts[2].begin, text.size());
  EXPECT_EQ(cuts[2].file, nullptr);
  EXPECT_THROW(pictures.check_all_in("a"), RequestError);
}

}  // namespace
}  // namespace coppice::server
