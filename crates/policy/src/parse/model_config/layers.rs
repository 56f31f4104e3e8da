//! Which layers of a model keep keys and values. Each family of models writes that in another way.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Fields, MOST};

/// The number of layers by what they keep of tokens. A layer may keep nothing (an MLP), or both
/// keys and a state (Zamba 2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Layers {
    pub(super) all: u64,
    /// Keys and values of all tokens.
    pub(super) full: u64,
    /// Keys and values of the last `window_tokens`.
    pub(super) windowed: u64,
    /// A state of constant size.
    pub(super) state: u64,
    pub(super) window_tokens: u64,
}

/// What a layer keeps.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LayerCache {
    All,
    Window,
    State,
    AllAndState,
    Nothing,
}

/// Names of lists with the kind of each layer. The last two are repeated over all layers
/// (RecurrentGemma).
const KIND_LISTS: [(&str, bool); 4] = [
    ("layer_types", false),
    ("layers_block_type", false),
    ("block_types", true),
    ("_block_types", true),
];

/// Names of lists with the numbers of the layers that attend to all tokens: Bamba, LFM2, Zamba 2.
const INDEX_LISTS: [&str; 3] = ["attn_layer_indices", "full_attn_idxs", "hybrid_layer_ids"];

/// Models whose layers all have the window, where the file has nothing but the window.
const ALL_WINDOWED: [&str; 4] = ["mistral", "mixtral", "phi3", "starcoder2"];

/// Models with an interval where the file has none: one layer of four.
const OF_QWEN_NEXT: [&str; 3] = ["qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"];
const USUAL_INTERVAL: u64 = 4;

/// DeepSeek V4 keeps one vector of 4 or of 128 tokens. vLLM took 7 KB a token of one checkpoint,
/// and 55 KB of another with the same description (github.com/vllm-project/vllm issue 51041).
const COMPRESSED: &str = "its layers compress the KV cache, and how much that takes is not in the \
                          file (7 to 55 KB a token were measured for DeepSeek-V4-Flash)";

impl Layers {
    /// Reads the kinds of layers.
    ///
    /// # Errors
    /// A field is missing, or is not what it should be.
    pub(super) fn read(fields: &Fields<'_>) -> Result<Self, String> {
        let window = Window::read(fields)?;
        let found = match Self::of_kinds(fields)? {
            Some(found) => Some(found),
            None => Self::of_pattern(fields)?,
        };
        let found = match found {
            Some(found) => found,
            None => Self::of_numbers(fields, window)?,
        };
        Ok(found.with_window(window))
    }

    /// Layers that other layers share keys and values with keep none (Gemma 3n, Gemma 4).
    fn owners(fields: &Fields<'_>, layers: u64) -> Result<u64, String> {
        // It is often 0, which `number` refuses.
        let shared = fields.get("num_kv_shared_layers").and_then(Value::as_u64).unwrap_or(0);
        layers
            .checked_sub(shared)
            .ok_or_else(|| format!("num_kv_shared_layers is more than all {layers} layers"))
    }

    /// A list with a name for each layer.
    fn of_kinds(fields: &Fields<'_>) -> Result<Option<Self>, String> {
        for (name, is_repeated) in KIND_LISTS {
            let Some(list) = fields.list(name)? else { continue };
            let kinds: Option<Vec<&str>> = list.iter().map(Value::as_str).collect();
            let kinds = kinds.filter(|kinds| !kinds.is_empty());
            let kinds = kinds.ok_or_else(|| format!("{name} is no list of names"))?;
            if kinds.iter().any(|kind| kind.contains("compressed")) {
                return Err(format!("{name}: {COMPRESSED}"));
            }
            let length = kinds.len() as u64;
            let all = match fields.number("num_hidden_layers")? {
                // NemotronH goes by the list, whatever the number is.
                Some(_) | None if name == "layers_block_type" => length,
                Some(all) if is_repeated || length >= all => all,
                Some(all) => return Err(format!("{name} has {length} of {all} layers")),
                None => length,
            };
            let owners = usize::try_from(Self::owners(fields, all)?).unwrap_or(usize::MAX);
            let kept = kinds.iter().cycle().take(owners).map(|kind| kept_by_name(kind));
            let counted = Self::count(all, kept);
            // In other words than those that are known here.
            let is_known = counted.full + counted.windowed + counted.state > 0;
            return Ok(Some(if is_known { counted } else { Self::attending(all, all) }));
        }
        Ok(None)
    }

    /// A text with a letter for each layer: `M` Mamba, `*` attention, `-` MLP, `E` experts.
    fn of_pattern(fields: &Fields<'_>) -> Result<Option<Self>, String> {
        let Some(pattern) = fields.get("hybrid_override_pattern") else { return Ok(None) };
        let pattern = pattern.as_str().filter(|pattern| pattern.len() as u64 <= MOST);
        let pattern = pattern.ok_or("hybrid_override_pattern is no text")?;
        // Behind a slash are the layers of speculative decoding; `|` divides among GPUs.
        let main = pattern.split('/').next().unwrap_or_default();
        let letters: Vec<char> = main.chars().filter(|letter| *letter != '|').collect();
        // The pattern decides, whatever num_hidden_layers is.
        let all = letters.len() as u64;
        if all == 0 {
            return Err("hybrid_override_pattern has no layer".to_owned());
        }
        let kept = letters.iter().map(|letter| match letter {
            '*' => LayerCache::All,
            'M' => LayerCache::State,
            _ => LayerCache::Nothing,
        });
        Ok(Some(Self::count(all, kept)))
    }

    /// Numbers, or lists of numbers.
    fn of_numbers(fields: &Fields<'_>, window: Option<Window>) -> Result<Self, String> {
        let all = fields.need("num_hidden_layers")?;
        if fields.get("compress_ratios").is_some() {
            return Err(format!("compress_ratios: {COMPRESSED}"));
        }
        if let Some(linear) = fields.get("linear_attn_config")
            && let Some(list) = linear.get("full_attn_layers")
        {
            let list = list.as_array().ok_or("linear_attn_config.full_attn_layers is no list")?;
            // Counted from 1.
            let full = distinct("linear_attn_config.full_attn_layers", list, all)?;
            return Ok(Self::attending(all, full));
        }
        let usual = fields.text("model_type").filter(|kind| OF_QWEN_NEXT.contains(kind));
        let interval = fields.number("full_attention_interval")?;
        if let Some(interval) = interval.or(usual.map(|_| USUAL_INTERVAL)) {
            return Ok(Self::attending(all, all / interval));
        }
        if let Some(period) = fields.number("attn_layer_period")? {
            let offset = match fields.get("attn_layer_offset") {
                None => 0,
                Some(offset) => offset.as_u64().ok_or("attn_layer_offset is no number")?,
            };
            let full =
                if offset < period { all.saturating_sub(offset).div_ceil(period) } else { 0 };
            return Ok(Self::attending(all, full));
        }
        for name in INDEX_LISTS {
            if let Some(list) = fields.list(name)? {
                return Ok(Self::attending(all, distinct(name, list, all)?));
            }
        }
        if let Some(list) = fields.list("attn_type_list")? {
            // MiniMax: 1 is attention, 0 is linear attention.
            let first = list.iter().take(usize::try_from(all).unwrap_or(usize::MAX));
            let full = first.filter(|kind| kind.as_u64() == Some(1)).count() as u64;
            return Ok(Self::attending(all, full));
        }
        let owners = Self::owners(fields, all)?;
        let full = window.map_or(Ok(owners), |_| full_beside_window(fields, owners))?;
        Ok(Self { windowed: owners - full, ..Self { all, full, ..Self::default() } })
    }

    /// `full` of all layers attend, and the others keep a state.
    fn attending(all: u64, full: u64) -> Self {
        let full = full.min(all);
        Self { all, full, state: all - full, ..Self::default() }
    }

    fn count(all: u64, kept: impl Iterator<Item = LayerCache>) -> Self {
        let mut layers = Self { all, ..Self::default() };
        for kept in kept.take(usize::try_from(all).unwrap_or(usize::MAX)) {
            layers.full += u64::from(matches!(kept, LayerCache::All | LayerCache::AllAndState));
            layers.windowed += u64::from(kept == LayerCache::Window);
            layers.state += u64::from(matches!(kept, LayerCache::State | LayerCache::AllAndState));
        }
        layers
    }

    /// Without a known window, they keep all tokens.
    fn with_window(self, window: Option<Window>) -> Self {
        match window {
            Some(Window { tokens }) if self.windowed > 0 => Self { window_tokens: tokens, ..self },
            _ => Self { full: self.full + self.windowed, windowed: 0, ..self },
        }
    }
}

fn kept_by_name(kind: &str) -> LayerCache {
    let has = |words: &[&str]| words.iter().any(|word| kind.contains(word));
    if has(&["linear", "mamba", "recurrent", "conv", "ssm", "delta", "kda", "rwkv"]) {
        LayerCache::State
    } else if kind.contains("hybrid") {
        LayerCache::AllAndState
    } else if has(&["sliding", "chunked", "local", "window"]) {
        LayerCache::Window
    } else if has(&["attention", "attn", "full", "global"]) {
        LayerCache::All
    } else {
        LayerCache::Nothing
    }
}

/// How many different layers a list names. A number beyond all layers is a mistake.
fn distinct(name: &str, list: &[Value], all: u64) -> Result<u64, String> {
    let numbers: Option<BTreeSet<u64>> = list.iter().map(Value::as_u64).collect();
    let numbers = numbers.ok_or_else(|| format!("{name} is no list of numbers"))?;
    match numbers.last() {
        Some(last) if *last > all => Err(format!("{name} names layer {last} of {all}")),
        _ => Ok(numbers.len() as u64),
    }
}

/// The tokens that a windowed layer keeps.
#[derive(Clone, Copy)]
struct Window {
    tokens: u64,
}

impl Window {
    fn read(fields: &Fields<'_>) -> Result<Option<Self>, String> {
        // Qwen 2 names a window that it does not use.
        if fields.get("use_sliding_window").and_then(Value::as_bool) == Some(false) {
            return Ok(None);
        }
        for name in ["sliding_window", "sliding_window_size", "attention_chunk_size"] {
            // 0, false and huge windows mean none.
            let is_none = |value: &Value| {
                value.as_bool() == Some(false)
                    || value.as_u64().is_some_and(|tokens| tokens == 0 || tokens > MOST)
            };
            if fields.get(name).is_some_and(is_none) {
                continue;
            }
            if let Some(tokens) = fields.number(name)? {
                return Ok(Some(Self { tokens }));
            }
        }
        Ok(None)
    }
}

/// Layers that attend to all tokens, in a model with a window that does not list its layers.
fn full_beside_window(fields: &Fields<'_>, layers: u64) -> Result<u64, String> {
    for name in ["sliding_window_pattern", "_sliding_window_pattern"] {
        if let Some(every) = fields.number(name)? {
            return Ok(layers / every);
        }
    }
    if fields.get("use_sliding_window").is_some()
        && let Some(first) = fields.get("max_window_layers").and_then(Value::as_u64)
    {
        return Ok(layers.min(first));
    }
    Ok(match fields.text("model_type") {
        Some("gemma2") => layers / 2,
        Some(kind) if ALL_WINDOWED.contains(&kind) => 0,
        // An upper bound.
        _ => layers,
    })
}
