//! `config.json` of a model, as Hugging Face's transformers writes it: how much KV cache a token
//! takes.

mod layers;

#[cfg(test)]
mod tests;

use serde_json::Value;

use layers::Layers;

/// No file that is worth reading is longer.
pub const MOST_BYTES: u64 = 4 << 20;

/// No model has more layers, heads or channels.
const MOST: u64 = 1 << 20;

/// Where models of several parts keep what their language model is.
const PARTS: [&str; 5] =
    ["text_config", "llm_config", "language_config", "language_model", "thinker_config"];

/// What of a model the KV cache depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvShape {
    /// All layers of the model.
    pub layers: u64,
    /// Layers that keep keys and values of all tokens.
    pub full_layers: u64,
    /// Layers that keep keys and values of the last `window_tokens` tokens only.
    pub windowed_layers: u64,
    /// Layers that keep a state of constant size for each request: Mamba, linear attention,
    /// convolution. The file does not say how large it is.
    pub state_layers: u64,
    /// Numbers that are kept of each token, over all full layers.
    pub full_elements: u64,
    /// Numbers that are kept of each token in the window, over all windowed layers.
    pub windowed_elements: u64,
    /// The window, in tokens. 0 without windowed layers.
    pub window_tokens: u64,
    /// Among so many ranks the cache can be divided.
    pub parts: u32,
    /// Whether it takes images or sound, too.
    pub has_media: bool,
    /// The longest request of the model, in tokens, if the file says.
    pub longest_tokens: Option<u64>,
    /// Bytes of one number, unless an option of the engine changes it.
    pub element_bytes: u64,
}

impl KvShape {
    /// Reads the file.
    ///
    /// # Errors
    /// Says what of it cannot be read, or is missing.
    pub fn read(text: &str) -> Result<Self, String> {
        let config: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let fields = Fields::of(&config);
        let layers = Layers::read(&fields)?;
        let (full, windowed, parts) = fields.elements_of_layers()?;
        Ok(Self {
            layers: layers.all,
            full_layers: layers.full,
            windowed_layers: layers.windowed,
            state_layers: layers.state,
            full_elements: full.saturating_mul(layers.full),
            windowed_elements: windowed.saturating_mul(layers.windowed),
            window_tokens: layers.window_tokens,
            parts: u32::try_from(parts).unwrap_or(u32::MAX),
            has_media: ["vision_config", "audio_config"]
                .iter()
                .any(|part| fields.get(part).is_some_and(Value::is_object)),
            longest_tokens: fields.get("max_position_embeddings").and_then(Value::as_u64),
            element_bytes: fields.element_bytes(),
        })
    }

    /// Layers that keep keys and values.
    pub fn kv_layers(&self) -> u64 {
        self.full_layers.saturating_add(self.windowed_layers)
    }
}

/// The parts of a file in which a field may be, the innermost first.
struct Fields<'v>(Vec<&'v Value>);

impl<'v> Fields<'v> {
    /// A part may be in a part: `thinker_config.text_config`.
    fn of(config: &'v Value) -> Self {
        let mut parts = vec![config];
        for _ in 0..2 {
            let outer = parts[0];
            let inner = PARTS.iter().filter_map(|name| outer.get(name));
            let Some(inner) = inner.into_iter().find(|part| part.is_object()) else { break };
            parts.insert(0, inner);
        }
        Self(parts)
    }

    fn get(&self, name: &str) -> Option<&'v Value> {
        self.0.iter().find_map(|part| part.get(name)).filter(|value| !value.is_null())
    }

    /// `None` if it is missing.
    ///
    /// # Errors
    /// It is not a number from 1 to [`MOST`].
    fn number(&self, name: &str) -> Result<Option<u64>, String> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let number = value.as_u64().filter(|number| (1..=MOST).contains(number));
        number.map(Some).ok_or_else(|| format!("{name} is no number from 1 to {MOST}"))
    }

    fn need(&self, name: &str) -> Result<u64, String> {
        self.number(name)?.ok_or_else(|| format!("it has no {name}"))
    }

    fn list(&self, name: &str) -> Result<Option<&'v [Value]>, String> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_array().map(|list| Some(&**list)).ok_or_else(|| format!("{name} is no list"))
    }

    fn text(&self, name: &str) -> Option<&'v str> {
        self.get(name)?.as_str()
    }

    fn head_size(&self) -> Result<u64, String> {
        let (channels, heads) = (self.need("hidden_size")?, self.need("num_attention_heads")?);
        Ok(channels.div_ceil(heads))
    }

    /// Numbers that a full and a windowed layer keep of a token, and into how many parts they
    /// divide.
    fn elements_of_layers(&self) -> Result<(u64, u64, u64), String> {
        if let Some(rank) = self.number("kv_lora_rank")? {
            // Latent attention: one vector for all heads, and a copy of it on each rank. Sparse
            // attention has one more vector, by which tokens are found (DeepSeek V3.2, GLM 5).
            let index = self.number("index_head_dim")?.unwrap_or(0);
            let elements = rank.saturating_add(self.need("qk_rope_head_dim")?);
            let elements = elements.saturating_add(index);
            return Ok((elements, elements, 1));
        }
        let heads = match self.number("num_key_value_heads")? {
            Some(heads) => heads,
            None => self.need("num_attention_heads")?,
        };
        // Zamba 2 has heads of another size than its channels suggest.
        let named = match self.number("attention_head_dim")? {
            None => self.number("head_dim")?,
            named => named,
        };
        let size = named.map_or_else(|| self.head_size(), Ok)?;
        // Gemma 4: the layers that see all tokens have fewer and larger heads.
        let global_heads = self.number("num_global_key_value_heads")?.unwrap_or(heads);
        let global_size = self.number("global_head_dim")?.unwrap_or(size);
        let elements = |heads: u64, size: u64| heads.saturating_mul(size).saturating_mul(2);
        Ok((elements(global_heads, global_size), elements(heads, size), heads.min(global_heads)))
    }

    fn element_bytes(&self) -> u64 {
        match self.text("torch_dtype").or_else(|| self.text("dtype")) {
            Some("float32") => 4,
            _ => 2,
        }
    }
}
