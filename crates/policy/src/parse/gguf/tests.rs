use proptest::prelude::*;

use super::*;

/// A file's head of such keys.
fn head(keys: &[(&str, Value)]) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3_u32.to_le_bytes());
    bytes.extend(1_u64.to_le_bytes());
    bytes.extend((keys.len() as u64).to_le_bytes());
    let text = |bytes: &mut Vec<u8>, text: &str| {
        bytes.extend((text.len() as u64).to_le_bytes());
        bytes.extend(text.as_bytes());
    };
    for (key, value) in keys {
        text(&mut bytes, key);
        match value {
            Value::Number(number) => {
                bytes.extend(4_u32.to_le_bytes());
                bytes.extend(u32::try_from(*number).unwrap().to_le_bytes());
            }
            Value::Text(value) => {
                bytes.extend(8_u32.to_le_bytes());
                text(&mut bytes, value);
            }
            Value::Numbers(list) => {
                bytes.extend(9_u32.to_le_bytes());
                bytes.extend(5_u32.to_le_bytes());
                bytes.extend((list.len() as u64).to_le_bytes());
                for number in list {
                    bytes.extend(u32::try_from(*number).unwrap().to_le_bytes());
                }
            }
        }
    }
    bytes
}

/// A model of that architecture with 4 layers, 8 heads, 2 KV heads of 64, and further keys.
fn model(architecture: &str, further: &[(&str, Value)]) -> Vec<u8> {
    let mut keys = vec![
        ("general.architecture".to_owned(), Value::Text(architecture.to_owned())),
        ("general.name".to_owned(), Value::Text("x".to_owned())),
    ];
    let usual = [
        ("block_count", Value::Number(4)),
        ("embedding_length", Value::Number(512)),
        ("attention.head_count", Value::Number(8)),
        ("attention.head_count_kv", Value::Number(2)),
        ("context_length", Value::Number(4096)),
    ];
    for (name, value) in usual.iter().chain(further) {
        keys.push((format!("{architecture}.{name}"), value.clone()));
    }
    let keys: Vec<(&str, Value)> =
        keys.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
    head(&keys)
}

fn of(architecture: &str, further: &[(&str, Value)]) -> KvShape {
    shape(&model(architecture, further)).unwrap()
}

#[test]
fn heads_and_their_lengths_are_read() {
    let plain = of("llama", &[]);
    assert_eq!((plain.layers, plain.full_layers, plain.parts), (4, 4, 2));
    assert_eq!(plain.full_elements, 4 * 2 * (64 + 64));
    assert_eq!((plain.longest_tokens, plain.element_bytes), (Some(4096), 2));
    let lengths = [
        ("attention.key_length", Value::Number(192)),
        ("attention.value_length", Value::Number(128)),
    ];
    assert_eq!(of("qwen3", &lengths).full_elements, 4 * 2 * (192 + 128));
    let latent = [
        ("attention.kv_lora_rank", Value::Number(512)),
        ("rope.dimension_count", Value::Number(64)),
    ];
    let latent = of("deepseek2", &latent);
    assert_eq!((latent.full_elements, latent.parts), (4 * 576, 1));
    assert_eq!(of("glm4moe", &[("nextn_predict_layers", Value::Number(1))]).layers, 3);
}

#[test]
fn layers_without_attention_and_with_a_window_are_told_apart() {
    let hybrid = [("attention.head_count_kv", Value::Numbers(vec![0, 0, 8, 0]))];
    let hybrid = of("granitehybrid", &hybrid);
    assert_eq!((hybrid.full_layers, hybrid.state_layers, hybrid.parts), (1, 3, 8));
    assert_eq!(hybrid.full_elements, 8 * 128);
    assert_eq!(of("qwen3next", &[]).full_layers, 1, "one of four without a key");
    let every = [("full_attention_interval", Value::Number(2))];
    assert_eq!(of("qwen35moe", &every).full_layers, 2);
    let window = ("attention.sliding_window", Value::Number(128));
    let listed = ("attention.sliding_window_pattern", Value::Numbers(vec![1, 0, 1, 0]));
    let windowed = of("gemma4", &[window.clone(), listed]);
    assert_eq!((windowed.windowed_layers, windowed.full_layers), (2, 2));
    assert_eq!((windowed.window_tokens, windowed.windowed_elements), (128, 2 * 2 * 128));
    let every = ("attention.sliding_window_pattern", Value::Number(4));
    assert_eq!(of("cohere2", &[window.clone(), every]).full_layers, 1);
    // Which layers have it is in the program of llama.cpp alone: an upper bound.
    assert_eq!(of("gpt-oss", &[window]).full_layers, 4);
}

#[test]
fn other_and_cut_files_are_refused_or_read_as_far_as_they_go() {
    let whole = model("llama", &[]);
    for (bytes, expected) in [
        (b"".to_vec(), "no GGUF file"),
        (b"GGML".to_vec(), "no GGUF file"),
        (b"GGUF".to_vec(), "it is cut"),
        (b"GGUF\x01\0\0\0".to_vec(), "version 1"),
        (whole[..30].to_vec(), "no general.architecture"),
        (whole[..140].to_vec(), "is missing, or no number"),
        (model("llama", &[("block_count", Value::Number(0))]), "block_count is missing"),
        (model("llama", &[("block_count", Value::Number(u64::from(u32::MAX)))]), "block_count"),
    ] {
        let error = shape(&bytes).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    // A key with a length that is larger than any file.
    let mut huge = whole[..24].to_vec();
    huge.extend(u64::MAX.to_le_bytes());
    assert!(shape(&huge).unwrap_err().contains("general.architecture"));
}

proptest! {
    #[test]
    fn arbitrary_files_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = shape(&bytes);
        let mut named = b"GGUF\x03\0\0\0".to_vec();
        named.extend(bytes);
        let _ = shape(&named);
    }

    #[test]
    fn a_changed_byte_does_no_harm(at in 0..300_usize, byte in any::<u8>()) {
        let list = Value::Numbers(vec![0, 2, 0, 2]);
        let mut bytes = model("jamba", &[("attention.head_count_kv", list)]);
        let at = at % bytes.len();
        bytes[at] = byte;
        if let Ok(shape) = shape(&bytes) {
            prop_assert!(shape.kv_layers() + shape.state_layers <= shape.layers);
        }
    }
}
