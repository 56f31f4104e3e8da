use proptest::prelude::*;
use serde_json::json;

use super::*;

fn shape(config: Value) -> KvShape {
    KvShape::read(&config.to_string()).unwrap_or_else(|error| panic!("{config}: {error}"))
}

/// A model of `layers` layers with 2 KV heads of 64, and further fields.
fn model(layers: u64, further: Value) -> Value {
    let mut config = json!({
        "num_hidden_layers": layers, "num_attention_heads": 16, "num_key_value_heads": 2,
        "head_dim": 64,
    });
    config.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
    config
}

/// Layers of a model that keep all tokens, the last ones, and a state.
fn kept(layers: u64, further: Value) -> (u64, u64, u64) {
    let shape = shape(model(layers, further));
    assert_eq!(shape.layers, layers);
    assert_eq!(shape.full_elements, shape.full_layers * 2 * 2 * 64);
    assert_eq!(shape.windowed_elements, shape.windowed_layers * 2 * 2 * 64);
    (shape.full_layers, shape.windowed_layers, shape.state_layers)
}

#[test]
fn heads_that_share_keys_and_values_are_counted_once() {
    let shape = shape(json!({
        "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
        "hidden_size": 8192, "torch_dtype": "bfloat16",
    }));
    assert_eq!((shape.full_elements * shape.element_bytes, shape.parts), (320 << 10, 8));
    assert_eq!((shape.layers, shape.kv_layers(), shape.window_tokens), (80, 80, 0));
}

#[test]
fn latent_attention_keeps_one_vector_and_is_not_divided() {
    let latent = json!({
        "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
        "kv_lora_rank": 512, "qk_rope_head_dim": 64, "hidden_size": 7168,
    });
    let of = shape(latent.clone());
    assert_eq!((of.full_elements, of.parts, of.element_bytes), (61 * 576, 1, 2));
    let mut sparse = latent;
    sparse["index_head_dim"] = json!(128);
    assert_eq!(shape(sparse).full_elements, 61 * (576 + 128));
}

#[test]
fn only_layers_with_attention_have_a_cache_in_hybrid_models() {
    // Nemotron-3-Super has 88 layers with 8 of attention.
    let pattern = format!("{}MEMEMEME", "MEMEMEMEM*".repeat(8));
    assert_eq!(kept(88, json!({ "hybrid_override_pattern": pattern })), (8, 0, 44));
    let with_draft = json!({ "hybrid_override_pattern": "M-M*|M-/*E" });
    assert_eq!(kept(6, with_draft), (1, 0, 3));
    // Its later form, without num_hidden_layers.
    let mut listed = model(1, json!({ "layers_block_type": ["mamba", "moe", "attention", "moe"] }));
    listed.as_object_mut().unwrap().remove("num_hidden_layers");
    let listed = shape(listed);
    assert_eq!((listed.layers, listed.full_layers, listed.state_layers), (4, 1, 1));
    // A number that contradicts the list or the pattern is ignored, as NemotronH does.
    let mut other =
        model(9, json!({ "layers_block_type": ["linear_attention", "full_attention"] }));
    assert_eq!((shape(other.clone()).layers, shape(other.clone()).full_layers), (2, 1));
    other.as_object_mut().unwrap().remove("layers_block_type");
    other["hybrid_override_pattern"] = json!("M*M");
    assert_eq!((shape(other.clone()).layers, shape(other).full_layers), (3, 1));
    assert_eq!(kept(48, json!({ "model_type": "qwen3_next" })), (12, 0, 36));
    // Qwen3-Next, Jamba, Kimi-Linear, Bamba, LFM2, MiniMax-Text.
    assert_eq!(kept(48, json!({ "full_attention_interval": 4 })), (12, 0, 36));
    assert_eq!(kept(32, json!({ "attn_layer_period": 8, "attn_layer_offset": 4 })), (4, 0, 28));
    assert_eq!(kept(33, json!({ "attn_layer_period": 8, "attn_layer_offset": 0 })), (5, 0, 28));
    let kimi = json!({ "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "kda_layers": [1, 2, 3],
    }});
    assert_eq!(kept(27, kimi), (7, 0, 20));
    assert_eq!(kept(32, json!({ "attn_layer_indices": [9, 18, 27] })), (3, 0, 29));
    assert_eq!(kept(16, json!({ "full_attn_idxs": [2, 5, 8, 10, 12, 14] })), (6, 0, 10));
    assert_eq!(kept(4, json!({ "attn_type_list": [0, 0, 0, 1] })), (1, 0, 3));
    // Granite 4, RecurrentGemma, Zamba 2.
    let granite = json!({ "layer_types": ["mamba", "mamba", "attention", "mamba"] });
    assert_eq!(kept(4, granite), (1, 0, 3));
    let recurrent = json!({
        "block_types": ["recurrent", "recurrent", "attention"], "sliding_window": 2048,
    });
    assert_eq!(kept(7, recurrent), (2, 0, 5));
    assert_eq!(kept(3, json!({ "layers_block_type": ["mamba", "hybrid", "mamba"] })), (1, 0, 3));
}

#[test]
fn a_window_bounds_what_a_layer_keeps() {
    // gpt-oss, by its list.
    let listed = json!({
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "sliding_window": 128,
    });
    assert_eq!(kept(3, listed.clone()), (1, 2, 0));
    assert_eq!(shape(model(3, listed)).window_tokens, 128);
    // Gemma 3, Gemma 2, Mistral 7B, Llama 4, Qwen 2.
    let gemma = json!({ "sliding_window": 1024, "sliding_window_pattern": 6 });
    assert_eq!(kept(62, gemma), (10, 52, 0));
    assert_eq!(kept(42, json!({ "sliding_window": 4096, "model_type": "gemma2" })), (21, 21, 0));
    assert_eq!(kept(32, json!({ "sliding_window": 4096, "model_type": "mistral" })), (0, 32, 0));
    let llama = json!({
        "layer_types": ["chunked_attention", "full_attention"], "attention_chunk_size": 8192,
    });
    assert_eq!(kept(2, llama), (1, 1, 0));
    let qwen = |is_used| json!({ "sliding_window": 4096, "use_sliding_window": is_used, "max_window_layers": 21 });
    assert_eq!(kept(28, qwen(true)), (21, 7, 0));
    assert_eq!(kept(28, qwen(false)), (28, 0, 0));
    // Which layers have it, or how large it is, is not in the file: an upper bound.
    let kinds = ["sliding_attention", "sliding_attention"];
    assert_eq!(kept(28, json!({ "sliding_window": 4096, "model_type": "new" })), (28, 0, 0));
    assert_eq!(kept(2, json!({ "layer_types": kinds })), (2, 0, 0));
}

#[test]
fn layers_that_share_a_cache_count_once_and_heads_may_differ_by_layer() {
    let kinds = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"];
    let shared = json!({ "layer_types": kinds, "sliding_window": 512, "num_kv_shared_layers": 2 });
    assert_eq!(kept(4, shared), (1, 1, 0));
    assert_eq!(kept(30, json!({ "num_kv_shared_layers": 10 })), (20, 0, 0));
    let gemma4 = shape(model(
        4,
        json!({ "layer_types": kinds, "sliding_window": 512, "global_head_dim": 128,
            "num_global_key_value_heads": 1 }),
    ));
    assert_eq!((gemma4.full_elements, gemma4.windowed_elements), (2 * 2 * 128, 2 * 2 * 2 * 64));
    assert_eq!(gemma4.parts, 1);
    let zamba2 = shape(model(2, json!({ "attention_head_dim": 160 })));
    assert_eq!(zamba2.full_elements, 2 * 2 * 2 * 160);
}

#[test]
fn the_text_part_is_found_at_any_depth() {
    let text = json!({
        "num_hidden_layers": 4, "head_dim": 128, "num_attention_heads": 16,
        "num_key_value_heads": 2, "kv_lora_rank": null,
        "layer_types": ["linear_attention", "linear_attention", "full_attention",
            "sliding_attention"],
    });
    for config in [
        json!({ "dtype": "float32", "text_config": text }),
        json!({ "dtype": "float32", "llm_config": text }),
        json!({ "dtype": "float32", "thinker_config": { "text_config": text } }),
    ] {
        let shape = shape(config);
        assert_eq!((shape.full_elements, shape.parts, shape.element_bytes), (1024, 2, 4));
        assert_eq!((shape.full_layers, shape.state_layers), (2, 2));
    }
}

#[test]
fn missing_and_wrong_fields_are_named() {
    for (text, expected) in [
        ("", "EOF while parsing"),
        ("[]", "it has no num_hidden_layers"),
        (r#"{"num_hidden_layers": 3}"#, "it has no num_attention_heads"),
        (r#"{"num_hidden_layers": -3}"#, "num_hidden_layers is no number from 1 to"),
        (r#"{"num_hidden_layers": 1e300}"#, "num_hidden_layers is no number from 1 to"),
        (r#"{"num_hidden_layers": "3"}"#, "num_hidden_layers is no number from 1 to"),
        (r#"{"num_hidden_layers": 3, "num_attention_heads": 4}"#, "it has no hidden_size"),
        (r#"{"num_hidden_layers": 3, "kv_lora_rank": 4}"#, "it has no qk_rope_head_dim"),
        (r#"{"num_hidden_layers": 3, "layer_types": 4}"#, "layer_types is no list"),
        (r#"{"num_hidden_layers": 3, "layer_types": [1]}"#, "layer_types is no list of names"),
        (r#"{"num_hidden_layers": 3, "layer_types": ["x"]}"#, "layer_types has 1 of 3 layers"),
        (
            r#"{"num_hidden_layers": 3, "hybrid_override_pattern": "/M*"}"#,
            "hybrid_override_pattern has no layer",
        ),
        (
            r#"{"num_hidden_layers": 2, "layer_types":
                ["sliding_attention", "compressed_sparse_attention"]}"#,
            "layer_types: its layers compress the KV cache",
        ),
        (
            r#"{"num_hidden_layers": 2, "compress_ratios": [0, 4]}"#,
            "compress_ratios: its layers compress the KV cache",
        ),
        (
            r#"{"num_hidden_layers": 3, "hybrid_override_pattern": 7}"#,
            "hybrid_override_pattern is no text",
        ),
        (
            r#"{"num_hidden_layers": 3, "full_attention_interval": "4"}"#,
            "full_attention_interval is no number from 1",
        ),
        (
            r#"{"num_hidden_layers": 3, "attn_layer_period": 0}"#,
            "attn_layer_period is no number from 1",
        ),
        (
            r#"{"num_hidden_layers": 3, "attn_layer_indices": [99]}"#,
            "attn_layer_indices names layer 99 of 3",
        ),
        (
            r#"{"num_hidden_layers": 3, "num_kv_shared_layers": 9}"#,
            "num_kv_shared_layers is more than all 3 layers",
        ),
    ] {
        let error = KvShape::read(text).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

/// Values that a field may have in a hostile file.
fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u64>().prop_map(Value::from),
        (0..70_u64).prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[M*E|/-]{0,40}".prop_map(Value::from),
        proptest::collection::vec(0..70_u64, 0..9).prop_map(Value::from),
        proptest::collection::vec("(full|sliding|linear)_attention", 0..9).prop_map(Value::from),
        Just(Value::Null),
        Just(json!({ "full_attn_layers": [1, 2] })),
    ]
}

proptest! {
    #[test]
    fn arbitrary_configurations_do_not_panic(text in ".{0,200}") {
        let _ = KvShape::read(&text);
    }

    #[test]
    fn no_more_layers_keep_something_than_there_are(
        fields in proptest::collection::btree_map(
            proptest::sample::select(vec![
                "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
                "hidden_size", "kv_lora_rank", "qk_rope_head_dim", "layer_types",
                "layers_block_type", "block_types", "hybrid_override_pattern",
                "full_attention_interval", "attn_layer_period", "attn_layer_offset",
                "linear_attn_config", "attn_layer_indices", "attn_type_list", "sliding_window",
                "sliding_window_pattern", "max_window_layers", "use_sliding_window",
                "num_kv_shared_layers", "global_head_dim", "text_config",
            ]),
            any_value(),
            0..12,
        ),
        layers in 1..70_u64,
    ) {
        let mut config = model(layers, json!({}));
        for (name, value) in fields {
            config[name] = value;
        }
        if let Ok(shape) = KvShape::read(&config.to_string()) {
            prop_assert!(shape.kv_layers() <= shape.layers, "{config}: {shape:?}");
            prop_assert!(shape.state_layers <= shape.layers, "{config}: {shape:?}");
            prop_assert_eq!(shape.window_tokens > 0, shape.windowed_layers > 0);
        }
    }
}
