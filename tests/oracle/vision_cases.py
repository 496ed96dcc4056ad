"""The tiny vision models, as data: one row a model. A picture has exactly the size that its tiles fill, so that nobody has to resize it;
what resizes (SmolVLM's overview of all tiles) is not compared. `markers` are special tokens from 3 on, which libmtmd looks for."""

from shapes import COMMON, NARROW

TEXT = {key: value for key, value in COMMON.items() if key not in ("pad_token_id", "bos_token_id", "eos_token_id")}
VISION = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, patch_size=8)

QWEN_VISION = dict(depth=3, hidden_size=32, num_heads=2, intermediate_size=48, out_hidden_size=64, patch_size=8)
QWEN_PREPROCESSOR = dict(patch_size=8, image_mean=[0.5, 0.4, 0.6], image_std=[0.5, 0.6, 0.4])

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
        preprocessor=QWEN_PREPROCESSOR,
        tiles=1,
        size=(48, 80),
        rows=15,
        markers=["<|image_pad|>", "<|vision_start|>", "<|vision_end|>"],
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
        preprocessor=QWEN_PREPROCESSOR,
        tiles=1,
        size=(48, 80),
        rows=15,
        markers=["<|image_pad|>", "<|vision_start|>", "<|vision_end|>"],
    ),
}
