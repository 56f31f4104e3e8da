//! The options of the benchmark.

use std::path::PathBuf;

use crate::arguments::{bytes, named, number};
use crate::policy::Policy;
use crate::scenario::Scenario;

const HELP: &str = "\
cargo bench --bench brake -- [OPTIONS]      (as root)

  --scenario NAME      collapse, or one in which no process may be stopped: dip, served, lines,
                       job-huge-pages, job-pipes, job-sockets; may be repeated [default: all]
  --policy NAME        none, earlyoom or umawarden; may be repeated [default: all]
  --runs N             of each policy in each scenario [default: 5]
  --rate GIB           taken per second [default: 4]
  --innocent GIB       memory of the innocent process [default: 4]
  --served GIB         size of the served model [default: 3]
  --rules FILE         for umawarden, instead of the shipped ones
  --directory DIR      where the files are kept [default: target/brake]
";

/// Scenarios, policies and sizes to measure.
#[derive(Debug)]
pub struct Options {
    pub scenarios: Vec<Scenario>,
    pub policies: Vec<Policy>,
    pub runs: usize,
    /// Bytes a second.
    pub rate: u64,
    pub innocent_bytes: u64,
    pub served_bytes: u64,
    pub rules: Option<PathBuf>,
    pub directory: PathBuf,
}

impl Options {
    /// `None` after the help text has been shown.
    pub fn parse(arguments: &[String]) -> Result<Option<Self>, String> {
        let mut options = Self {
            scenarios: Vec::new(),
            policies: Vec::new(),
            runs: 5,
            rate: 4 << 30,
            innocent_bytes: 4 << 30,
            served_bytes: 3 << 30,
            rules: None,
            directory: PathBuf::from("target/brake"),
        };
        let mut arguments = arguments.iter().filter(|argument| *argument != "--bench");
        while let Some(option) = arguments.next() {
            if option == "--help" {
                print!("{HELP}");
                return Ok(None);
            }
            let value =
                arguments.next().ok_or_else(|| format!("{option} needs a value\n{HELP}"))?;
            match option.as_str() {
                "--scenario" => {
                    options.scenarios.push(named(value, &Scenario::ALL, Scenario::name)?)
                }
                "--policy" => options.policies.push(named(value, &Policy::ALL, Policy::name)?),
                "--runs" => options.runs = number(option, value)? as usize,
                "--rate" => options.rate = bytes(option, value)?,
                "--innocent" => options.innocent_bytes = bytes(option, value)?,
                "--served" => options.served_bytes = bytes(option, value)?,
                "--rules" => options.rules = Some(PathBuf::from(value)),
                "--directory" => options.directory = PathBuf::from(value),
                _ => return Err(format!("unknown option {option}\n{HELP}")),
            }
        }
        if options.scenarios.is_empty() {
            options.scenarios = Scenario::ALL.to_vec();
        }
        if options.policies.is_empty() {
            options.policies = Policy::ALL.to_vec();
        }
        std::fs::create_dir_all(&options.directory)
            .map_err(|error| format!("{}: {error}", options.directory.display()))?;
        Ok(Some(options))
    }
}
