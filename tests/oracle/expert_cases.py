"""The tiny models with experts, as in cases.py."""

from shapes import LLAMA4, LLAMA4_MARKS, LLAMA4_SETTINGS, NARROW, TWO_HEADS, WINDOW, YARN

GPT_OSS = dict(
    hidden_size=32,
    num_hidden_layers=2,
    head_dim=16,
    intermediate_size=32,
    num_local_experts=6,
    num_experts_per_tok=2,
    sliding_window=8,
    rope_parameters=dict(YARN, original_max_position_embeddings=64, rope_theta=50.0, truncate=False),
)

# YaRN's ramp ends at pair 4; with the other base at 4.75. libllama knows no parts of pairs.
GPT_OSS_WHOLE = dict(GPT_OSS, rope_parameters=dict(GPT_OSS["rope_parameters"], rope_theta=103.7533721923828))


EXPERTS = {
    "mixtral": dict(
        model="Mixtral",
        config=dict(TWO_HEADS, intermediate_size=48, num_local_experts=6, num_experts_per_tok=2),
        seed="6",
    ),
    "qwen2moe": dict(
        model="Qwen2Moe",
        config=dict(
            TWO_HEADS,
            num_experts=8,
            num_experts_per_tok=3,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=48,
            norm_topk_prob=False,
        ),
        seed="66",
    ),
    "qwen3moe": dict(
        model="Qwen3Moe",
        config=dict(NARROW, num_experts=12, num_experts_per_tok=4, moe_intermediate_size=32, norm_topk_prob=True),
        seed="7",
    ),
    "glm4moe": dict(
        model="Glm4Moe",
        config=dict(
            TWO_HEADS,
            head_dim=16,
            num_hidden_layers=3,
            n_routed_experts=8,
            num_experts_per_tok=3,
            n_shared_experts=1,
            first_k_dense_replace=1,
            moe_intermediate_size=32,
            routed_scaling_factor=1.7,
            norm_topk_prob=True,
            use_qk_norm=True,
            attention_bias=True,
            partial_rotary_factor=0.5,
            n_group=1,
            topk_group=1,
        ),
        seed="11",
    ),
    "gpt-oss": dict(model="GptOss", config=GPT_OSS, marks=WINDOW, seed="20"),
    # The experts' weights are what MXFP4 holds, and the file has them in MXFP4.
    "gpt-oss-mxfp4": dict(model="GptOss", config=GPT_OSS_WHOLE, marks=WINDOW, experts="MXFP4", seed="6"),
    "gpt-oss-whole-pairs": dict(model="GptOss", config=GPT_OSS_WHOLE, marks=WINDOW, seed="36"),
    "llama4": dict(
        model="Llama4",
        text=True,
        config=dict(
            LLAMA4, hidden_size=32, num_hidden_layers=4, num_local_experts=4, num_experts_per_tok=1, interleave_moe_layer_step=2
        ),
        settings=LLAMA4_SETTINGS,
        marks=LLAMA4_MARKS,
        seed="45",
    ),
    # As 26B-A4B: experts beside the feed-forward, each with norms of its own.
    "gemma4-experts": dict(
        model="Gemma4",
        text=True,
        config=dict(
            NARROW,
            num_hidden_layers=2,
            global_head_dim=32,
            num_global_key_value_heads=1,
            attention_k_eq_v=True,
            layer_types=["sliding_attention", "full_attention"],
            sliding_window=8,
            hidden_size_per_layer_input=0,
            enable_moe_block=True,
            num_experts=6,
            top_k_experts=2,
            moe_intermediate_size=32,
            final_logit_softcapping=4.0,
            tie_word_embeddings=True,
        ),
        marks=WINDOW,
        seed="116",
    ),
}
