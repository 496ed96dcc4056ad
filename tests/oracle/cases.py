"""The tiny models, as data: one row a model.

`config` are arguments of the family's configuration class, over COMMON. Sizes are small so that a file takes some
300 kB, and constants are chosen so that each matters: a large epsilon of the norms, windows of 8 and rope's original
context of 16 in a sequence of 60, soft caps that bend, scales far from 1. `marks` say where in a sequence something
begins to matter: the test prints them beside the first position that differs.
"""

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

LLAMA4_MARKS = {8: "the first chunk of 8 ends", 15: "queries of layers without positions grow"}

CASES = {
    "llama": dict(model="Llama", config={}),
    "llama3": dict(
        model="Llama",
        config=dict(
            head_dim=32,
            rope_parameters=dict(
                rope_type="llama3",
                rope_theta=10000.0,
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=32,
            ),
        ),
    ),
    "llama-linear": dict(
        model="Llama",
        config=dict(
            attention_bias=True,
            mlp_bias=True,
            tie_word_embeddings=True,
            rope_parameters=dict(rope_type="linear", factor=4.0, rope_theta=500.0),
        ),
    ),
    "qwen2": dict(model="Qwen2", config=dict(tie_word_embeddings=True)),
    "qwen2-yarn": dict(model="Qwen2", config=dict(rope_parameters=YARN), marks={16: "past YaRN's original context"}),
    "qwen3": dict(model="Qwen3", config=dict(head_dim=32)),
    "qwen3-yarn": dict(
        model="Qwen3",
        config=dict(head_dim=32, tie_word_embeddings=True, rope_parameters=YARN),
        marks={16: "past YaRN's original context"},
    ),
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
    "gpt-oss": dict(model="GptOss", config=GPT_OSS, marks=WINDOW, seed="20"),
    # The experts' weights are what MXFP4 holds, and the file has them in MXFP4.
    "gpt-oss-mxfp4": dict(model="GptOss", config=GPT_OSS_WHOLE, marks=WINDOW, experts="MXFP4", seed="6"),
    "gpt-oss-whole-pairs": dict(model="GptOss", config=GPT_OSS_WHOLE, marks=WINDOW, seed="36"),
    "gemma3": dict(
        model="Gemma3",
        text=True,
        config=dict(
            NARROW,
            num_hidden_layers=7,
            num_key_value_heads=1,
            query_pre_attn_scalar=16,
            sliding_window=8,
            tie_word_embeddings=True,
            rope_parameters=dict(
                full_attention=dict(rope_type="default", rope_theta=1000000.0),
                sliding_attention=dict(rope_type="default", rope_theta=500.0),
            ),
        ),
        marks=WINDOW,
    ),
    "gemma3-linear": dict(
        model="Gemma3",
        text=True,
        config=dict(
            NARROW,
            num_hidden_layers=7,
            query_pre_attn_scalar=16,
            sliding_window=8,
            tie_word_embeddings=True,
            final_logit_softcapping=4.0,
            rope_parameters=dict(
                full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1000.0),
                sliding_attention=dict(rope_type="default", rope_theta=500.0),
            ),
        ),
        marks=WINDOW,
    ),
    "gemma2": dict(
        model="Gemma2",
        config=dict(
            NARROW,
            num_hidden_layers=5,
            query_pre_attn_scalar=16,
            sliding_window=8,
            attn_logit_softcapping=2.0,
            final_logit_softcapping=4.0,
            tie_word_embeddings=True,
        ),
        marks=WINDOW,
    ),
    # With 46 layers a file is taken for Gemma 2 27B, whose scores are scaled by the width per head: the format has no
    # key that says so.
    "gemma2-27b": dict(
        model="Gemma2",
        config=dict(
            NARROW,
            intermediate_size=32,
            num_hidden_layers=46,
            num_key_value_heads=1,
            query_pre_attn_scalar=8,
            sliding_window=8,
            attn_logit_softcapping=2.0,
            final_logit_softcapping=4.0,
            tie_word_embeddings=True,
        ),
        marks=WINDOW,
    ),
    # libllama takes a file with "phi3" in its name for one with that vocabulary, and stops.
    "phi-window": dict(
        model="Phi3", config=dict(sliding_window=8, original_max_position_embeddings=512), marks=WINDOW
    ),
    "phi4": dict(
        model="Phi3",
        config=dict(
            tie_word_embeddings=True,
            num_attention_heads=2,
            num_key_value_heads=1,
            original_max_position_embeddings=512,
            rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.75),
        ),
    ),
    "granite": dict(
        model="Granite",
        config=dict(
            attention_multiplier=0.4,
            embedding_multiplier=3.0,
            residual_multiplier=0.35,
            logits_scaling=6.0,
            tie_word_embeddings=True,
        ),
    ),
    "olmo2": dict(model="Olmo2", config={}),
    "olmo3-yarn": dict(
        model="Olmo3",
        config=dict(
            num_hidden_layers=5,
            intermediate_size=32,
            sliding_window=8,
            layer_types=["sliding_attention"] * 3 + ["full_attention", "sliding_attention"],
            rope_parameters=YARN,
        ),
        marks=WINDOW | {16: "past YaRN's original context, in full layers"},
    ),
    "smollm3": dict(model="SmolLM3", config=dict(num_hidden_layers=5, intermediate_size=32, tie_word_embeddings=True)),
    "ministral3": dict(
        model="Ministral3",
        config=dict(
            head_dim=32,
            rope_parameters=dict(
                YARN,
                beta_fast=32.0,
                beta_slow=1.0,
                mscale=1.0,
                mscale_all_dim=1.0,
                llama_4_scaling_beta=0.5,
            ),
        ),
        marks={16: "queries grow with the logarithm of the position's multiple of 16"},
    ),
    # Without its experts: of these dense layers no file is known, but they are the only chunks that the package has. The
    # settings are ours: libllama knows one chunk and one length of temperatures, whatever the file says.
    "llama4-dense": dict(
        model="Llama4",
        text=True,
        config=dict(LLAMA4, num_hidden_layers=5, num_local_experts=2, moe_layers=[], interleave_moe_layer_step=0),
        settings=LLAMA4_SETTINGS,
        marks=LLAMA4_MARKS,
    ),
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
    # As E2B: the last layers read the keys and values of earlier ones, and each layer has an embedding of its own.
    "gemma4-shared": dict(
        model="Gemma4",
        text=True,
        config=dict(
            NARROW,
            num_hidden_layers=8,
            num_key_value_heads=1,
            global_head_dim=32,
            layer_types=["sliding_attention", "full_attention"] * 4,
            sliding_window=8,
            num_kv_shared_layers=4,
            use_double_wide_mlp=True,
            hidden_size_per_layer_input=32,
            vocab_size_per_layer_input=128,
            final_logit_softcapping=4.0,
            tie_word_embeddings=True,
        ),
        marks=WINDOW,
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
    # As 31B: values of the full layers are their keys, which have fewer and larger heads.
    "gemma4": dict(
        model="Gemma4",
        text=True,
        config=dict(
            NARROW,
            num_hidden_layers=6,
            global_head_dim=32,
            num_global_key_value_heads=1,
            attention_k_eq_v=True,
            layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
            sliding_window=8,
            hidden_size_per_layer_input=0,
            final_logit_softcapping=4.0,
            tie_word_embeddings=True,
        ),
        marks=WINDOW,
    ),
    "granite-swa": dict(
        model="GraniteSWA",
        config=dict(
            num_hidden_layers=5,
            intermediate_size=32,
            sliding_window=8,
            attention_multiplier=0.4,
            embedding_multiplier=3.0,
            residual_multiplier=0.35,
            logits_scaling=6.0,
        ),
        marks=WINDOW,
    ),
    "seed-oss": dict(model="SeedOss", config=dict(head_dim=32)),
}
