"""What several of the tiny models have in common."""

COMMON = dict(
    vocab_size=128,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=512,
    rms_norm_eps=0.05,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    tie_word_embeddings=False,
)

NARROW = dict(hidden_size=32, intermediate_size=64, head_dim=16)  # 4 heads of 16 on a width of 32
TWO_HEADS = dict(hidden_size=32, num_attention_heads=2, num_key_value_heads=1)  # of 16
WINDOW = {8: "the first key leaves a window of 8"}
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, rope_theta=10000.0)
LLAMA4 = dict(
    intermediate_size=32,
    intermediate_size_mlp=64,
    head_dim=16,
    attention_chunk_size=8,
    floor_scale=16,
    attn_scale=0.5,
    rope_parameters=dict(rope_type="default", rope_theta=10000.0),
)

LLAMA4_SETTINGS = {
    "attention.sliding_window": 8,
    "attention.temperature_length": 16,
    "attention.temperature_scale": 0.5,
}

LLAMA4_MARKS = {8: "the first chunk of 8 ends", 15: "queries of layers without positions grow"}
