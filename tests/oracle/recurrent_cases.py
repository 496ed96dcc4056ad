"""The tiny models with recurrent layers, as in cases.py."""

# Values are as wide as keys, which libllama takes for granted.
DELTA_NET = dict(
    hidden_size=32,
    head_dim=32,
    num_hidden_layers=4,
    layer_types=["linear_attention", "linear_attention", "full_attention", "linear_attention"],
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=16,
    linear_value_head_dim=16,
    rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.25),
)

# libllama adds the norms' epsilon to the squared lengths of keys and queries, the authors a constant.
SMALL_EPSILON = dict(rms_norm_eps=1e-6)

QWEN35 = DELTA_NET | SMALL_EPSILON | dict(
    layer_types=["linear_attention"] * 3 + ["full_attention"],
    rope_parameters=dict(DELTA_NET["rope_parameters"], mrope_section=[2, 1, 1], mrope_interleaved=True),
)

QWEN35_EXPERTS = dict(num_experts=8, num_experts_per_tok=3, moe_intermediate_size=32, shared_expert_intermediate_size=48)
LFM2 = dict(
    hidden_size=32,
    num_hidden_layers=4,
    num_attention_heads=2,
    num_key_value_heads=1,
    layer_types=["conv", "full_attention", "conv", "conv"],
    norm_eps=0.05,
    tie_word_embeddings=True,
    rope_parameters=dict(rope_type="default", rope_theta=10000.0),
)

GRANITE_HYBRID = dict(
    hidden_size=32,
    num_hidden_layers=4,
    num_attention_heads=2,
    num_key_value_heads=1,
    layer_types=["linear_attention", "linear_attention", "full_attention", "linear_attention"],
    mamba_n_heads=4,
    mamba_d_head=16,
    mamba_n_groups=2,
    mamba_d_state=32,
    shared_intermediate_size=64,
    attention_multiplier=0.4,
    embedding_multiplier=3.0,
    residual_multiplier=0.35,
    logits_scaling=6.0,
)

# As the converter calls them.
GRANITE_SAVED = dict(layer_types=["mamba", "mamba", "attention", "mamba"])


RECURRENT = {
    "qwen3next": dict(model="Qwen3Next", config=DELTA_NET | QWEN35_EXPERTS, seed="80"),
    "qwen35": dict(model="Qwen3_5", text=True, config=QWEN35),
    "qwen35moe": dict(model="Qwen3_5Moe", text=True, config=QWEN35 | QWEN35_EXPERTS, seed="155"),
    "lfm2": dict(model="Lfm2", config=dict(LFM2, block_auto_adjust_ff_dim=False)),
    "lfm2moe": dict(
        model="Lfm2Moe",
        config=dict(
            LFM2,
            num_dense_layers=1,
            num_experts=8,
            num_experts_per_tok=3,
            moe_intermediate_size=32,
            use_expert_bias=True,
        ),
        seed="265",
    ),
    "granitehybrid": dict(
        model="GraniteMoeHybrid",
        config=dict(GRANITE_HYBRID, num_local_experts=0, num_experts_per_tok=0, intermediate_size=64),
        saved=GRANITE_SAVED,
    ),
    "granitehybrid-experts": dict(
        model="GraniteMoeHybrid",
        config=dict(GRANITE_HYBRID, num_local_experts=6, num_experts_per_tok=2, intermediate_size=32),
        saved=GRANITE_SAVED,
        seed="33",
    ),
}
