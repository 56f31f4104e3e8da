//! The head of a GGUF file: how much KV cache a token of its model takes.
//!
//! The format is described at github.com/ggml-org/ggml/blob/master/docs/gguf.md: little-endian
//! numbers, keys of text, values with a type. Keys of the model precede those of the
//! tokenizer, which are long.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use super::model_config::KvShape;

/// So much of a file is read.
pub const HEAD_BYTES: u64 = 8 << 20;

/// No model has more keys, layers, heads or channels.
const MOST: u64 = 1 << 20;

/// No key and no value that is kept is longer.
const MOST_TEXT: u64 = 1 << 16;

/// Models without an interval in the file: one layer of four has attention.
const OF_QWEN_NEXT: [&str; 3] = ["qwen3next", "qwen35", "qwen35moe"];
const USUAL_INTERVAL: u64 = 4;

/// A value that matters here.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Number(u64),
    Numbers(Vec<u64>),
    Text(String),
}

/// Reads the shape of the KV cache from the head of a file, which may be cut.
///
/// # Errors
/// It is no GGUF file, or says too little.
pub fn shape(head: &[u8]) -> Result<KvShape, String> {
    let keys = keys(head)?;
    let architecture = match keys.get("general.architecture") {
        Some(Value::Text(name)) => name.clone(),
        _ => return Err("it has no general.architecture".to_owned()),
    };
    let model = Model { keys: &keys, architecture: &architecture };
    // Layers of speculative decoding are not run by default.
    let layers = model.need("block_count")?;
    let layers = layers.saturating_sub(model.number("nextn_predict_layers").unwrap_or(0)).max(1);
    let owners = layers.saturating_sub(model.number("attention.shared_kv_layers").unwrap_or(0));
    let heads = model.need("attention.head_count")?;
    let of_layer = |layer: u64| -> u64 {
        match model.value("attention.head_count_kv") {
            Some(Value::Number(heads)) => *heads,
            Some(Value::Numbers(list)) => {
                let at = usize::try_from(layer).unwrap_or(usize::MAX);
                list.get(at).copied().unwrap_or(0)
            }
            _ => heads,
        }
    };
    let interval = model.number("full_attention_interval").filter(|interval| *interval > 0);
    let usual = OF_QWEN_NEXT.contains(&&*architecture).then_some(USUAL_INTERVAL);
    let interval = interval.or(usual);
    let elements = model.elements_of_head(heads)?;
    let window = model.number("attention.sliding_window").filter(|window| *window > 0);
    let mut shape = KvShape { layers, element_bytes: 2, parts: u32::MAX, ..KvShape::default() };
    for layer in 0..layers {
        let heads = of_layer(layer);
        if heads == 0 || interval.is_some_and(|interval| !(layer + 1).is_multiple_of(interval)) {
            shape.state_layers += 1;
            continue;
        }
        if layer >= owners {
            continue;
        }
        let heads = if elements.is_latent { 1 } else { heads };
        let bytes = heads.saturating_mul(elements.of_head);
        shape.parts = shape.parts.min(u32::try_from(heads).unwrap_or(u32::MAX));
        match window.filter(|_| model.is_windowed(layer)) {
            Some(window) => {
                shape.window_tokens = window;
                shape.windowed_layers += 1;
                shape.windowed_elements = shape.windowed_elements.saturating_add(bytes);
            }
            None => {
                shape.full_layers += 1;
                shape.full_elements = shape.full_elements.saturating_add(bytes);
            }
        }
    }
    shape.parts = if shape.kv_layers() == 0 { 1 } else { shape.parts };
    shape.longest_tokens = model.number("context_length");
    Ok(shape)
}

/// The keys of a model, without the name of its architecture.
struct Model<'k> {
    keys: &'k BTreeMap<String, Value>,
    architecture: &'k str,
}

/// Numbers that a layer keeps of a token.
struct Elements {
    /// For each head; of latent attention, for all.
    of_head: u64,
    is_latent: bool,
}

impl Model<'_> {
    fn value(&self, name: &str) -> Option<&Value> {
        self.keys.get(&format!("{}.{name}", self.architecture))
    }

    fn number(&self, name: &str) -> Option<u64> {
        match self.value(name)? {
            Value::Number(number) => Some(*number).filter(|number| *number <= MOST),
            // Some models have a value for each layer: the largest is an upper bound.
            Value::Numbers(list) => list.iter().copied().max().filter(|number| *number <= MOST),
            Value::Text(_) => None,
        }
    }

    fn need(&self, name: &str) -> Result<u64, String> {
        let number = self.number(name).filter(|number| *number > 0);
        number.ok_or_else(|| format!("{}.{name} is missing, or no number", self.architecture))
    }

    fn elements_of_head(&self, heads: u64) -> Result<Elements, String> {
        if let Some(rank) = self.number("attention.kv_lora_rank") {
            let of_head = rank.saturating_add(self.need("rope.dimension_count")?);
            return Ok(Elements { of_head, is_latent: true });
        }
        let usual = || Ok::<_, String>(self.need("embedding_length")?.div_ceil(heads));
        let length = |name| self.number(name).map_or_else(usual, Ok);
        let of_head =
            length("attention.key_length")?.saturating_add(length("attention.value_length")?);
        Ok(Elements { of_head, is_latent: false })
    }

    /// Whether a layer has the window, as far as the file says it.
    fn is_windowed(&self, layer: u64) -> bool {
        match self.value("attention.sliding_window_pattern") {
            Some(Value::Number(every)) if *every > 0 => !(layer + 1).is_multiple_of(*every),
            Some(Value::Numbers(list)) => {
                let at = usize::try_from(layer).unwrap_or(usize::MAX);
                list.get(at).is_some_and(|is_windowed| *is_windowed != 0)
            }
            _ => false,
        }
    }
}

/// The keys in the head, up to its end or the first that is cut.
fn keys(head: &[u8]) -> Result<BTreeMap<String, Value>, String> {
    let mut reader = GgufReader { rest: head };
    if reader.take(4) != Some(b"GGUF") {
        return Err("it is no GGUF file".to_owned());
    }
    let version = reader.number(4).ok_or("it is cut")?;
    if !(2..=3).contains(&version) {
        return Err(format!("its format has version {version}; 2 and 3 are known"));
    }
    let (_tensors, count) = (reader.number(8), reader.number(8));
    let mut keys = BTreeMap::new();
    for _ in 0..count.unwrap_or(0).min(MOST) {
        let Some((key, value)) = reader.entry() else { break };
        if let Some(value) = value {
            keys.insert(key, value);
        }
    }
    Ok(keys)
}

struct GgufReader<'h> {
    rest: &'h [u8],
}

impl<'h> GgufReader<'h> {
    fn take(&mut self, count: u64) -> Option<&'h [u8]> {
        let (taken, rest) = self.rest.split_at_checked(usize::try_from(count).ok()?)?;
        self.rest = rest;
        Some(taken)
    }

    /// A little-endian number of so many bytes.
    fn number(&mut self, bytes: u64) -> Option<u64> {
        let bytes = self.take(bytes)?;
        Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn text(&mut self) -> Option<&'h [u8]> {
        let length = self.number(8)?;
        self.take(length)
    }

    /// A key, and its value if it is of a kind that matters.
    fn entry(&mut self) -> Option<(String, Option<Value>)> {
        let key = self.text()?;
        if key.len() as u64 > MOST_TEXT {
            return None;
        }
        let kind = self.number(4)?;
        let value = self.value(kind)?;
        Some((String::from_utf8_lossy(key).into_owned(), value))
    }

    /// `None` if it is cut, or of an unknown kind.
    fn value(&mut self, kind: u64) -> Option<Option<Value>> {
        if let Some(size) = size_of(kind) {
            let number = self.number(size)?;
            return Some(is_whole(kind).then_some(Value::Number(number)));
        }
        match kind {
            TEXT => {
                let text = self.text()?;
                let is_short = text.len() as u64 <= MOST_TEXT;
                let text = || Value::Text(String::from_utf8_lossy(text).into_owned());
                Some(is_short.then(text))
            }
            LIST => self.list(),
            _ => None,
        }
    }

    fn list(&mut self) -> Option<Option<Value>> {
        let (kind, count) = (self.number(4)?, self.number(8)?);
        if let Some(size) = size_of(kind) {
            let bytes = self.take(count.checked_mul(size)?)?;
            if !is_whole(kind) || count > MOST_TEXT {
                return Some(None);
            }
            let mut items = Self { rest: bytes };
            let numbers = (0..count).map_while(|_| items.number(size)).collect();
            return Some(Some(Value::Numbers(numbers)));
        }
        if kind != TEXT {
            return None;
        }
        for _ in 0..count {
            self.text()?;
        }
        Some(None)
    }
}

const TEXT: u64 = 8;
const LIST: u64 = 9;

/// Bytes of a number of that kind.
fn size_of(kind: u64) -> Option<u64> {
    Some(match kind {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        10..=12 => 8,
        _ => return None,
    })
}

/// Whether a kind is a whole number or a truth value; the others are fractions.
fn is_whole(kind: u64) -> bool {
    !matches!(kind, 6 | 12)
}
