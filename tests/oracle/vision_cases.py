"""The tiny vision models, as data: one row a model. A picture has exactly the size that its tiles fill, so that nobody has to resize it;
what resizes (SmolVLM's overview of all tiles) is not compared. `served`: the tokens that
libmtmd puts around the rows of a picture of one tile, which may stand there several times; `one_tile`: facts of the projector that make it so. `markers` are special tokens from 3 on, which libmtmd looks for."""

from recurrent_cases import QWEN35, QWEN35_EXPERTS
from shapes import COMMON, LLAMA4, LLAMA4_SETTINGS, NARROW

TEXT = {key: value for key, value in COMMON.items() if key not in ("pad_token_id", "bos_token_id", "eos_token_id")}
VISION = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, patch_size=8)

QWEN_VISION = dict(depth=3, hidden_size=32, num_heads=2, intermediate_size=48, out_hidden_size=64, patch_size=8)
QWEN_PICTURE = dict(
    preprocessor=dict(patch_size=8, image_mean=[0.5, 0.4, 0.6], image_std=[0.5, 0.6, 0.4]),
    tiles=1,
    size=(48, 80),
    rows=15,
    markers=["<|image_pad|>", "<|vision_start|>", "<|vision_end|>"],
    served=([4], [5]),
)

VISION_CASES = {
    "smolvlm": dict(
        model="SmolVLM",
        text="VLlama3ForCausalLM",
        config=dict(
            text_config=TEXT | dict(model_type="llama"),
            vision_config=VISION | dict(model_type="smolvlm_vision", image_size=64),
            scale_factor=2,
            image_token_id=3,
        ),
        preprocessor=dict(size=dict(longest_edge=128), image_mean=[0.5, 0.4, 0.6], image_std=[0.5, 0.6, 0.4]),
        tiles=2,  # beside each other
        rows=16,
        markers=["<image>", "\n\n", "\n", "<fake_token_around_image>", "<global-img>", "<row_1_col_1>", "<row_1_col_2>"],
        served=([6, 8], [4, 6, 7], [6]),
        one_tile={"clip.vision.preproc_image_size": 64},
    ),
    "gemma3": dict(
        model="Gemma3",
        text="Gemma3ForConditionalGeneration",
        names={"vision_tower.": "vision_tower.vision_model."},
        config=dict(
            text_config=TEXT | NARROW | dict(
                model_type="gemma3_text", num_hidden_layers=7, num_key_value_heads=1, query_pre_attn_scalar=16, sliding_window=8,
                tie_word_embeddings=True),
            vision_config=VISION | dict(model_type="siglip_vision_model", image_size=64, vision_use_head=False),
            mm_tokens_per_image=16,
            image_token_id=3,
        ),
        preprocessor=dict(image_seq_length=16, image_mean=[0.5, 0.4, 0.6], image_std=[0.5, 0.6, 0.4]),
        tiles=1,
        rows=16,
        markers=["<image_soft_token>", "<start_of_image>", "<end_of_image>"],
        served=([4], [5]),
    ),
    "gemma4": dict(
        model="Gemma4",
        text="Gemma4ForConditionalGeneration",
        config=dict(
            text_config=TEXT | NARROW | dict(
                model_type="gemma4_text", num_hidden_layers=6, global_head_dim=32, num_global_key_value_heads=1, attention_k_eq_v=True,
                layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2, sliding_window=8,
                hidden_size_per_layer_input=0, final_logit_softcapping=4.0, tie_word_embeddings=True, pad_token_id=0,
                use_bidirectional_attention="vision"),
            vision_config=dict(
                model_type="gemma4_vision", hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
                num_key_value_heads=2, head_dim=16, patch_size=8, position_embedding_size=64, standardize=True),
            audio_config=None,
            image_token_id=3,
            boi_token_id=4,
            eoi_token_id=5,
        ),
        preprocessor=dict(patch_size=8, image_mean=[0.0, 0.0, 0.0], image_std=[1.0, 1.0, 1.0]),
        tiles=1,
        size=(72, 96),
        seed="20",
        rows=12,
        markers=["<|image|>", "<|image>", "<image|>"],
        served=([4], [5]),
    ),
    "qwen25vl": dict(
        model="Qwen2_5_VL",
        text="Qwen2_5_VLForConditionalGeneration",
        config=dict(
            text_config=TEXT | dict(
                model_type="qwen2_5_vl_text",
                rope_parameters=dict(rope_type="default", rope_theta=10000.0, mrope_section=[2, 3, 3])),
            vision_config=QWEN_VISION | dict(model_type="qwen2_5_vl_vision", fullatt_block_indexes=[2]),
            image_token_id=3,
        ),
        **QWEN_PICTURE,
    ),
    "qwen3vl": dict(
        model="Qwen3VL",
        text="Qwen3VLForConditionalGeneration",
        config=dict(
            text_config=TEXT | dict(
                model_type="qwen3_vl_text", num_hidden_layers=3, head_dim=16,
                rope_parameters=dict(rope_type="default", rope_theta=10000.0, mrope_section=[4, 2, 2])),
            vision_config=QWEN_VISION | dict(
                model_type="qwen3_vl_vision", num_position_embeddings=64, deepstack_visual_indexes=[0, 1]),
            image_token_id=3,
        ),
        **QWEN_PICTURE,
    ),
    "qwen3vlmoe": dict(
        model="Qwen3VLMoe",
        text="Qwen3VLMoeForConditionalGeneration",
        seed="38",
        transposed=("mlp.experts.down_proj", "mlp.experts.gate_up_proj"),
        config=dict(
            text_config=TEXT | dict(
                model_type="qwen3_vl_moe_text", num_hidden_layers=3, head_dim=16, num_experts=12, num_experts_per_tok=4, moe_intermediate_size=32,
                norm_topk_prob=True, rope_parameters=dict(rope_type="default", rope_theta=10000.0, mrope_section=[4, 2, 2])),
            vision_config=QWEN_VISION | dict(
                model_type="qwen3_vl_moe_vision", num_position_embeddings=64, deepstack_visual_indexes=[0, 1]),
            image_token_id=3,
        ),
        **QWEN_PICTURE,
    ),
    "mistral3": dict(
        model="Mistral3",
        text="Mistral3ForConditionalGeneration",
        names={"language_model.model.embed_tokens.": "model.embed_tokens."},
        config=dict(
            text_config=TEXT | dict(model_type="mistral", head_dim=16, sliding_window=None),
            vision_config=VISION | dict(model_type="pixtral", num_hidden_layers=3, image_size=128, head_dim=16, rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
            image_token_index=3,
            spatial_merge_size=2,
            tie_word_embeddings=False,
        ),
        preprocessor=dict(size=dict(longest_edge=128), patch_size=8, image_mean=[0.5, 0.4, 0.6], image_std=[0.5, 0.6, 0.4]),
        tiles=1,
        size=(48, 64),
        rows=14,
        columns=4,  # then a token that ends the line, but for the last one
        line_end="[IMG_BREAK]",
        markers=["[IMG]", "[IMG_BREAK]", "[IMG_END]"],
        served=([], [5]),
    ),
    "llama4": dict(
        model="Llama4",
        text="Llama4ForConditionalGeneration",
        config=dict(
            text_config=TEXT | LLAMA4 | dict(
                model_type="llama4_text", hidden_size=32, num_hidden_layers=4, num_local_experts=4, num_experts_per_tok=1, interleave_moe_layer_step=2),
            vision_config=dict(
                model_type="llama4_vision_model", hidden_size=32, intermediate_size=128, num_hidden_layers=3, num_attention_heads=2, patch_size=8,
                image_size=64, projector_input_dim=40, projector_output_dim=40, vision_output_dim=40,
                rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
            image_token_index=3,
            boi_token_index=4,
            eoi_token_index=5,
        ),
        settings=LLAMA4_SETTINGS,
        preprocessor=dict(size=dict(height=64, width=64), image_mean=[0.5, 0.4, 0.6], image_std=[0.5, 0.6, 0.4]),
        tiles=1,
        rows=16,
        served=([4, 6], [5]),
        mapped=("attn_post_norm", "ln2"),  # as published files have it; the pinned converter takes the name for another family's
        markers=["<|patch|>", "<|image_start|>", "<|image_end|>", "<|image|>", "<|tile_x_separator|>", "<|tile_y_separator|>"],
    ),
    "internvl": dict(
        model="InternVL",
        text="Qwen2ForCausalLM",
        projector="InternVisionModel",
        names={"vision_tower.": "model.vision_tower.", "multi_modal_projector.": "model.multi_modal_projector."},
        config=dict(
            text_config=TEXT | dict(model_type="qwen2"),
            vision_config=VISION | dict(model_type="internvl_vision", num_hidden_layers=4, image_size=64, hidden_act="gelu", attention_bias=True, layer_norm_eps=1e-6),
            image_token_id=3,
            tie_word_embeddings=False,
        ),
        preprocessor=dict(image_mean=[0.5, 0.4, 0.6], image_std=[0.5, 0.6, 0.4]),
        tiles=2,
        rows=16,
        served=([4], [5]),
        markers=["<IMG_CONTEXT>", "<img>", "</img>"],
    ),
    "qwen35": dict(
        model="Qwen3_5",
        text="Qwen3_5ForConditionalGeneration",
        config=dict(
            text_config=TEXT | QWEN35 | dict(model_type="qwen3_5_text"),
            vision_config=QWEN_VISION | dict(model_type="qwen3_5_vision", num_position_embeddings=64, out_hidden_size=32),
            image_token_id=3,
        ),
        **QWEN_PICTURE,
    ),
    "qwen35moe": dict(
        model="Qwen3_5Moe",
        text="Qwen3_5MoeForConditionalGeneration",
        seed="22",
        config=dict(
            text_config=TEXT | QWEN35 | QWEN35_EXPERTS | dict(model_type="qwen3_5_moe_text"),
            vision_config=QWEN_VISION | dict(model_type="qwen3_5_moe_vision", num_position_embeddings=64, out_hidden_size=32),
            image_token_id=3,
        ),
        **QWEN_PICTURE,
    ),
}

# As 26B-A4B: experts beside the feed-forward.
_gemma4 = VISION_CASES["gemma4"]
VISION_CASES["gemma4moe"] = _gemma4 | dict(
    seed="93",
    config=_gemma4["config"] | dict(
        text_config=_gemma4["config"]["text_config"] | dict(
            num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"], enable_moe_block=True, num_experts=6, top_k_experts=2,
            moe_intermediate_size=32)))
