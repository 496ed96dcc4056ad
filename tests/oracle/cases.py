"""The tiny models, as data: one row a model.

`config` are arguments of the family's configuration class, over COMMON. Sizes are small so that a file takes some
300 kB, and constants are chosen so that each matters: a large epsilon of the norms, windows of 8 and rope's original
context of 16 in a sequence of 60, soft caps that bend, scales far from 1. `marks` say where in a sequence something
begins to matter: the test prints them beside the first position that differs.
"""

from expert_cases import EXPERTS
from recurrent_cases import RECURRENT
from shapes import LLAMA4, LLAMA4_MARKS, LLAMA4_SETTINGS, NARROW, WINDOW, YARN

DENSE = {
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

CASES = DENSE | EXPERTS | RECURRENT
