//! Templates of labels and annotations, as in Prometheus: text with `{{ … }}` actions.
//!
//! A value passes from left to right through the functions of a pipeline. Control structures and
//! queries are refused by name.

mod format;
mod functions;
mod go_float;
mod scan;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use self::functions::TemplateFunction;
pub use self::go_float::go_float;

/// The longest text that rendering may yield, in bytes; the rest is cut off.
const MAX_RENDERED: usize = 16 * 1024;

/// A parsed template.
#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    text: Arc<str>,
    parts: Vec<TemplatePart>,
}

/// A mistake in a template, with its span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateError {
    /// Byte range within the template's text.
    pub span: std::ops::Range<usize>,
    /// The message with the remedy.
    pub message: String,
}

impl std::fmt::Display for TemplateError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for TemplateError {}

#[derive(Clone, Debug, PartialEq)]
enum TemplatePart {
    Text(String),
    Action(Pipe),
}

/// Commands joined by `|`; the value of each is the last argument of the next.
#[derive(Clone, Debug, PartialEq)]
struct Pipe {
    commands: Vec<Command>,
}

#[derive(Clone, Debug, PartialEq)]
enum Command {
    Operand(Operand),
    Call(TemplateFunction, Vec<Operand>),
}

#[derive(Clone, Debug, PartialEq)]
enum Operand {
    Value,
    Label(Arc<str>),
    Labels,
    Number(f64),
    Text(Arc<str>),
    Pipe(Pipe),
}

/// The value of an operand or function.
#[derive(Clone, Debug, PartialEq)]
enum Datum {
    Number(f64),
    Text(String),
}

impl Datum {
    /// As Go prints it with `%v`.
    fn text(self) -> String {
        match self {
            Self::Number(number) => go_float(number),
            Self::Text(text) => text,
        }
    }

    /// As Prometheus' functions convert their argument.
    fn number(&self) -> Option<f64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Text(text) => functions::parse_float(text),
        }
    }
}

/// The data of a template.
struct Context<'c> {
    labels: &'c [(Arc<str>, Arc<str>)],
    value: f64,
}

/// The functions that templates may call.
pub fn function_names() -> impl Iterator<Item = &'static str> {
    functions::NAMES.iter().map(|(name, _)| *name)
}

impl Template {
    /// Parses `{{ $value | humanize1024 }}B free` and the like.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        Self::parse_all(text).map_err(|errors| {
            let nothing = || TemplateError { span: 0..text.len(), message: "bad template".into() };
            errors.into_iter().next().unwrap_or_else(nothing)
        })
    }

    /// The same; the error has all mistakes, in the order of the text.
    pub fn parse_all(text: &str) -> Result<Self, Vec<TemplateError>> {
        Ok(Self { text: text.into(), parts: scan::parts(text)? })
    }

    /// The text that it was parsed from.
    pub fn as_written(&self) -> &Arc<str> {
        &self.text
    }

    /// Renders it for one alert. Like Prometheus, it shows a failing function in the text.
    pub fn render(&self, labels: &[(Arc<str>, Arc<str>)], value: f64) -> String {
        let context = Context { labels, value };
        let mut out = String::new();
        for part in &self.parts {
            if out.len() > MAX_RENDERED {
                break;
            }
            match part {
                TemplatePart::Text(text) => out.push_str(text),
                TemplatePart::Action(pipe) => match pipe.value(&context) {
                    Ok(datum) => out.push_str(&datum.text()),
                    Err(error) => return format!("<error expanding template: {error}>"),
                },
            }
        }
        if out.len() > MAX_RENDERED {
            let end = (0..=MAX_RENDERED).rev().find(|end| out.is_char_boundary(*end));
            out.truncate(end.unwrap_or(0));
        }
        out
    }

    /// The labels that it refers to.
    pub fn labels(&self) -> Vec<&str> {
        let mut labels = Vec::new();
        for part in &self.parts {
            if let TemplatePart::Action(pipe) = part {
                pipe.collect_labels(&mut labels);
            }
        }
        labels
    }
}

impl Pipe {
    fn value(&self, context: &Context<'_>) -> Result<Datum, String> {
        let mut piped = None;
        for command in &self.commands {
            piped = Some(match command {
                Command::Operand(operand) => operand.value(context)?,
                Command::Call(function, operands) => {
                    let mut arguments = Vec::with_capacity(operands.len() + 1);
                    for operand in operands {
                        arguments.push(operand.value(context)?);
                    }
                    arguments.extend(piped);
                    function.call(&arguments)?
                }
            });
        }
        Ok(piped.unwrap_or(Datum::Text(String::new())))
    }

    fn collect_labels<'t>(&'t self, labels: &mut Vec<&'t str>) {
        for command in &self.commands {
            let operands = match command {
                Command::Operand(operand) => std::slice::from_ref(operand),
                Command::Call(_, operands) => operands,
            };
            for operand in operands {
                match operand {
                    Operand::Label(label) => labels.push(label),
                    Operand::Pipe(pipe) => pipe.collect_labels(labels),
                    _ => {}
                }
            }
        }
    }
}

impl Operand {
    fn value(&self, context: &Context<'_>) -> Result<Datum, String> {
        Ok(match self {
            Self::Value => Datum::Number(context.value),
            Self::Number(number) => Datum::Number(*number),
            Self::Text(text) => Datum::Text(text.to_string()),
            Self::Label(label) => {
                let found = context.labels.iter().find(|(name, _)| name == label);
                Datum::Text(found.map(|(_, value)| value.to_string()).unwrap_or_default())
            }
            Self::Labels => Datum::Text(all_labels(context.labels)),
            Self::Pipe(pipe) => pipe.value(context)?,
        })
    }
}

/// As Go prints a map.
fn all_labels(labels: &[(Arc<str>, Arc<str>)]) -> String {
    let labels: Vec<String> =
        labels.iter().map(|(name, value)| format!("{name}:{value}")).collect();
    format!("map[{}]", labels.join(" "))
}
