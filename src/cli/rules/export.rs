//! `umawarden rules export`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use promql_rules::is_label_name;

use super::super::Exit;
use crate::cli::output::{self, errln};
use crate::config::flags::LoadFlags;
use crate::config::measure::duration_within;
use crate::config::reader::{environment, find_rule_files, load_rules, load_settings, load_under};
use crate::config::rules::{
    ExportOptions, ObjectMetadata, is_export, prometheus_object, prometheus_rules,
};
use crate::config::settings::{RuleEntry, RuleSource, Settings};
use crate::policy::rule::RuleSet;

/// Arguments of `umawarden rules export`.
#[derive(Debug, Args)]
#[command(after_help = EXPORT_HELP)]
pub struct ExportArguments {
    /// Rule files, folders of *.yaml, or globs [default: those of the configuration, else the
    /// shipped rules].
    #[arg(value_name = "PATH")]
    pub paths: Vec<PathBuf>,

    /// The configuration that overrides rules and names rule files [default: none].
    #[arg(long = "config.file", value_name = "FILE")]
    pub config_file: Option<PathBuf>,

    /// The output file [default: standard output].
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Labels that distinguish nodes in Prometheus; with commas or repeated.
    ///
    /// Scraped series have labels of their target. These are added to every on(…), sum(…) and
    /// similar, so that each node is evaluated by its own series.
    #[arg(long, value_name = "LABEL", value_delimiter = ',', value_parser = label,
          default_value = "instance", conflicts_with = "as_is")]
    pub by: Vec<Arc<str>>,

    /// The scrape interval of Prometheus.
    ///
    /// Groups are evaluated no more often, and shorter ranges are extended to four intervals: a
    /// range with a single scrape yields nothing.
    #[arg(long, value_name = "DURATION", value_parser = scrape_interval,
          default_value = "15s", conflicts_with = "as_is")]
    pub scrape_interval: Duration,

    /// The URL of alerts/RUNBOOK.md or of your own runbook: each alert gets the annotation
    /// runbook_url with its section.
    #[arg(long, value_name = "URL", value_parser = runbook_url)]
    pub runbook_url: Option<Arc<str>>,

    /// Overwrite a file that is not an earlier export.
    ///
    /// The source of the rules is never overwritten, since an export has no remedies.
    #[arg(long, requires = "output")]
    pub force: bool,

    /// Keep expressions and intervals as written.
    #[arg(long)]
    pub as_is: bool,

    /// Write a PrometheusRule, the object of the Prometheus operator, for kubectl apply.
    #[arg(long)]
    pub kubernetes: bool,

    /// The name of that object.
    #[arg(long, value_name = "NAME", value_parser = object_name, default_value = "umawarden",
          requires = "kubernetes")]
    pub name: String,

    /// The namespace of that object [default: the one that kubectl uses].
    #[arg(long, value_name = "NAMESPACE", value_parser = namespace, requires = "kubernetes")]
    pub namespace: Option<String>,

    /// A label of that object, by which a Prometheus selects it; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = object_label, requires = "kubernetes")]
    pub object_label: Vec<(String, String)>,
}

const EXPORT_HELP: &str = "\
Writes the alerts of rules, without `mode` and `remedy`, as a file for `rule_files:` of Prometheus \
2.42 or later: the same groups, conditions, `for`, `keep_firing_for`, labels and annotations.

umawarden samples one node ten times a second; a Prometheus scrapes many nodes less often. So \
labels in expressions distinguish nodes (--by), and intervals and ranges are extended for its \
scrapes (--scrape-interval); a group without an interval keeps that of Prometheus. Prometheus \
misses conditions of a few seconds, so that rules with `export: false` are left out. --as-is \
exports all rules, with their expressions unchanged.

  umawarden rules export --output umawarden-alerts.yaml
  umawarden rules export --config.file /etc/umawarden/umawarden.yaml
  umawarden rules export my-rules/ --by instance,cluster --scrape-interval 5s
  umawarden rules export --kubernetes --namespace monitoring >alerts.yaml
  umawarden rules export --kubernetes --object-label release=prometheus

With --config.file severity, `for` and `keep_firing_for` are those that `umawarden rules print` \
shows, and a comment says where they are overridden.

A new file or an earlier export is written; any other file is overwritten only with --force, and \
the source of the rules never.

Exit codes: 0 written, 2 rules or the output cannot be used.";

/// The part of a file that is read to identify it.
const BEGINNING_BYTES: u64 = 4096;

fn label(text: &str) -> Result<Arc<str>, String> {
    match is_label_name(text) && text != "__name__" {
        true => Ok(text.into()),
        false => Err("not a label: letters, digits and _, not beginning with a digit".to_owned()),
    }
}

/// A name as Kubernetes takes it: a DNS subdomain.
/// <https://kubernetes.io/docs/concepts/overview/working-with-objects/names/>
fn object_name(text: &str) -> Result<String, String> {
    let is_fine = text.len() <= 253 && text.split('.').all(is_dns_label);
    is_fine.then(|| text.to_owned()).ok_or_else(|| {
        "not a name: lower-case letters, digits, - and ., at most 253, with a letter or digit at \
         both ends"
            .to_owned()
    })
}

/// A DNS label.
fn namespace(text: &str) -> Result<String, String> {
    is_dns_label(text).then(|| text.to_owned()).ok_or_else(|| {
        "not a namespace: lower-case letters, digits and -, at most 63, with a letter or digit at \
         both ends"
            .to_owned()
    })
}

/// A label of an object: a name, with a DNS subdomain and a slash before it or not, and its value.
/// <https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/>
fn object_label(text: &str) -> Result<(String, String), String> {
    let is_word = |text: &str| {
        let is_inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let is_edge = |c: char| c.is_ascii_alphanumeric();
        text.len() <= 63
            && text.chars().all(is_inner)
            && text.starts_with(is_edge)
            && text.ends_with(is_edge)
    };
    let wrong = "not a label: write KEY=VALUE, each of at most 63 letters, digits, -, _ and ., \
                 with a letter or digit at both ends; KEY may have a domain and / in front";
    let (key, value) = text.split_once('=').ok_or(wrong)?;
    let (domain, name) =
        key.split_once('/').map_or((None, key), |(domain, name)| (Some(domain), name));
    let is_fine = is_word(name)
        && (value.is_empty() || is_word(value))
        && domain.is_none_or(|domain| object_name(domain).is_ok());
    is_fine.then(|| (key.to_owned(), value.to_owned())).ok_or_else(|| wrong.to_owned())
}

fn is_dns_label(text: &str) -> bool {
    let is_alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.len() <= 63
        && text.starts_with(is_alphanumeric)
        && text.ends_with(is_alphanumeric)
        && text.chars().all(|c| is_alphanumeric(c) || c == '-')
}

fn runbook_url(text: &str) -> Result<Arc<str>, String> {
    let is_web = text.starts_with("http://") || text.starts_with("https://");
    // An annotation is a template, and the section is appended.
    match is_web && !text.contains("{{") && !text.contains('#') {
        true => Ok(text.into()),
        false => Err("write https://HOST/PATH, without # and {{".to_owned()),
    }
}

fn scrape_interval(text: &str) -> Result<Duration, String> {
    duration_within(text, Duration::from_millis(10), Duration::from_secs(3_600))
}

/// The rules, and what they are read from.
struct Source {
    rules: RuleSet,
    files: Vec<PathBuf>,
    remarks: Vec<String>,
}

impl Source {
    fn read(arguments: &ExportArguments) -> anyhow::Result<Self> {
        // Groups without an interval keep none.
        let interval = Duration::ZERO;
        let (source, rules, remarks) = match &arguments.config_file {
            None => {
                let source = RuleSource::given(&arguments.paths);
                let (rules, remarks) = load_rules(&source, interval)?;
                (source, rules, remarks)
            }
            Some(file) => {
                let (config_file, rules) = (Some(file.clone()), arguments.paths.clone());
                let flags = LoadFlags { config_file, rules, mode: None };
                let settings = load_settings(&flags.into(), &environment())?;
                let loaded = load_under(Settings { evaluation_interval: interval, ..settings })?;
                (loaded.settings.rules, loaded.rules, loaded.remarks)
            }
        };
        let paths = find_rule_files(&source).files.into_iter().filter_map(|entry| match entry {
            RuleEntry::Path(path) => Some(path),
            RuleEntry::Shipped => None,
        });
        let files = paths.chain(arguments.config_file.clone()).collect();
        Ok(Self { rules, files, remarks })
    }
}

/// Runs the command.
pub(super) fn execute(arguments: &ExportArguments) -> anyhow::Result<Exit> {
    let Source { rules, files, remarks } = Source::read(arguments)?;
    for remark in remarks {
        errln!("umawarden: {remark}");
    }
    let runbook_url = arguments.runbook_url.clone();
    let options = match arguments.as_is {
        true => ExportOptions { runbook_url, ..ExportOptions::default() },
        false => ExportOptions {
            by: arguments.by.clone(),
            scrape_interval: Some(arguments.scrape_interval),
            runbook_url,
        },
    };
    let metadata = ObjectMetadata {
        name: arguments.name.clone(),
        namespace: arguments.namespace.clone(),
        labels: BTreeMap::from_iter(arguments.object_label.iter().cloned()),
    };
    let text = match arguments.kubernetes {
        true => prometheus_object(&rules, &options, &metadata),
        false => prometheus_rules(&rules, &options),
    };
    match &arguments.output {
        Some(file) => {
            check_output(file, &files, arguments)?;
            fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
        }
        None => output::print(&text),
    }
    Ok(Exit::Fine)
}

/// Whether the output may be overwritten. An export in place of its own rules would be loaded as
/// rules without remedies.
fn check_output(
    output: &Path,
    inputs: &[PathBuf],
    arguments: &ExportArguments,
) -> anyhow::Result<()> {
    let there = match fs::metadata(output) {
        Ok(there) => there,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read {}", output.display()));
        }
    };
    let is_it = |path: &&PathBuf| {
        let same = |found: fs::Metadata| (found.dev(), found.ino()) == (there.dev(), there.ino());
        fs::metadata(path).is_ok_and(same)
    };
    if let Some(input) = inputs.iter().find(is_it) {
        bail!(
            "cannot write {}: the rules are read from there ({}), and their remedies would be \
             lost; name another file",
            output.display(),
            input.display()
        );
    }
    // Devices and pipes have no content to lose.
    if arguments.force || !there.is_file() || there.len() == 0 {
        return Ok(());
    }
    let mut beginning = Vec::new();
    File::open(output)
        .and_then(|file| file.take(BEGINNING_BYTES).read_to_end(&mut beginning))
        .with_context(|| format!("it is unknown whether {} is an export", output.display()))?;
    if !is_export(&String::from_utf8_lossy(&beginning)) {
        bail!(
            "cannot write {}: it holds something that is no earlier export; name another file, or \
             overwrite it with --force",
            output.display()
        );
    }
    Ok(())
}
