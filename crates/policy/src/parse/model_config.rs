//! `config.json` of a model, as Hugging Face's transformers writes it: how much KV cache a token
//! takes.

use serde_json::Value;

/// No file that is worth reading is longer.
pub const MOST_BYTES: u64 = 4 << 20;

/// No model has more layers, heads or channels.
const MOST: u64 = 1 << 20;

/// Where models of several parts keep what their language model is.
const PARTS: [&str; 3] = ["text_config", "llm_config", "language_config"];

/// What of a model the KV cache depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Numbers that are kept of each token, over all layers.
    pub elements: u64,
    /// Among so many ranks the cache can be divided.
    pub parts: u32,
    /// Bytes of one number, unless an option of the engine changes it.
    pub element_bytes: u64,
}

impl KvShape {
    /// Reads the file. Layers with a sliding window count in full, since engines may keep them so.
    ///
    /// # Errors
    /// Says what of it cannot be read, or is missing.
    pub fn read(text: &str) -> Result<Self, String> {
        let config: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let parts = PARTS.iter().filter_map(|name| config.get(name)).chain([&config]);
        let parts: Vec<&Value> = parts.filter(|part| part.is_object()).collect();
        let fields = Fields(&parts);
        let layers = fields.attending_layers()?;
        let (elements, parts) = match fields.number("kv_lora_rank") {
            // Latent attention: one vector for all heads, and a copy of it on each rank.
            Some(rank) => (rank.saturating_add(fields.need("qk_rope_head_dim")?), 1),
            None => {
                let heads = fields.number("num_key_value_heads");
                let heads = heads.map_or_else(|| fields.need("num_attention_heads"), Ok)?;
                let size = fields.number("head_dim").map_or_else(|| fields.head_size(), Ok)?;
                (heads.saturating_mul(size).saturating_mul(2), heads)
            }
        };
        Ok(Self {
            elements: elements.saturating_mul(layers),
            parts: u32::try_from(parts).unwrap_or(u32::MAX),
            element_bytes: fields.element_bytes(),
        })
    }
}

/// The parts of a file in which a field may be, the innermost first.
struct Fields<'v>(&'v [&'v Value]);

impl Fields<'_> {
    fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find_map(|part| part.get(name)).filter(|value| !value.is_null())
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.get(name)?.as_u64().filter(|number| (1..=MOST).contains(number))
    }

    fn need(&self, name: &str) -> Result<u64, String> {
        self.number(name).ok_or_else(|| match self.get(name) {
            Some(_) => format!("{name} is no number from 1 to {MOST}"),
            None => format!("it has no {name}"),
        })
    }

    fn head_size(&self) -> Result<u64, String> {
        let (channels, heads) = (self.need("hidden_size")?, self.need("num_attention_heads")?);
        Ok(channels.div_ceil(heads))
    }

    /// Layers that keep something of each token; those of linear attention do not.
    fn attending_layers(&self) -> Result<u64, String> {
        let layers = self.need("num_hidden_layers")?;
        let Some(kinds) = self.get("layer_types").and_then(Value::as_array) else {
            return Ok(layers);
        };
        let kinds = kinds.iter().filter_map(Value::as_str);
        let attending = kinds.filter(|kind| kind.contains("attention") && !kind.contains("linear"));
        Ok(layers.min(attending.count() as u64))
    }

    fn element_bytes(&self) -> u64 {
        let kind = self.get("torch_dtype").or_else(|| self.get("dtype")).and_then(Value::as_str);
        match kind {
            Some("float32") => 4,
            _ => 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn heads_that_share_keys_and_values_are_counted_once() {
        let shape = KvShape::read(
            r#"{"num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
                "hidden_size": 8192, "torch_dtype": "bfloat16"}"#,
        );
        let shape = shape.unwrap();
        assert_eq!((shape.elements * shape.element_bytes, shape.parts), (320 << 10, 8));
    }

    #[test]
    fn latent_attention_keeps_one_vector_and_is_not_divided() {
        let shape = KvShape::read(
            r#"{"num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
                "kv_lora_rank": 512, "qk_rope_head_dim": 64, "hidden_size": 7168}"#,
        );
        let shape = shape.unwrap();
        assert_eq!((shape.elements, shape.parts, shape.element_bytes), (61 * 576, 1, 2));
    }

    #[test]
    fn the_text_part_is_found_and_linear_attention_has_no_cache() {
        let shape = KvShape::read(
            r#"{"dtype": "float32", "text_config": {"num_hidden_layers": 4, "head_dim": 128,
                "num_attention_heads": 16, "num_key_value_heads": 2, "kv_lora_rank": null,
                "layer_types": ["linear_attention", "linear_attention", "full_attention",
                "sliding_attention"]}}"#,
        );
        let shape = shape.unwrap();
        let expected = KvShape { elements: 2 * 2 * 2 * 128, parts: 2, element_bytes: 4 };
        assert_eq!(shape, expected);
    }

    #[test]
    fn missing_fields_are_named() {
        for (text, expected) in [
            ("", "EOF while parsing"),
            ("[]", "it has no num_hidden_layers"),
            (r#"{"num_hidden_layers": 3}"#, "it has no num_attention_heads"),
            (r#"{"num_hidden_layers": -3}"#, "num_hidden_layers is no number from 1 to"),
            (r#"{"num_hidden_layers": 3, "num_attention_heads": 4}"#, "it has no hidden_size"),
            (r#"{"num_hidden_layers": 3, "kv_lora_rank": 4}"#, "it has no qk_rope_head_dim"),
        ] {
            let error = KvShape::read(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_configurations_do_not_panic(text in ".{0,200}") {
            let _ = KvShape::read(&text);
        }
    }
}
