//! Advice from the field: what is known against versions and options of engines, drivers and
//! kernels. The facts are data: `advice.yaml`, inside the binary, or a file of the user's.

mod numbers;
mod read;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::version::PackageVersion;
use super::{DoctorFacts, Fact, Finding, ProfileMisfits, RunningLoader, Severity};
use crate::config::mistake::{Mistakes, SourceText};
use crate::engines::loaders::Loader;
use crate::engines::{LaunchCommand, facts};
use crate::model::EngineKind;
pub(super) use numbers::driver;

const SHIPPED: &str = include_str!("../advice.yaml");

/// All that is known.
#[derive(Clone, Debug, Default)]
pub struct AdviceTable {
    /// In the order of the file.
    pub entries: Vec<AdviceEntry>,
    /// Repositories of images, and the package whose version their tags are.
    images: BTreeMap<String, String>,
}

/// One fact, and when it holds.
#[derive(Clone, Debug)]
pub struct AdviceEntry {
    /// Its name, which is in findings.
    pub id: String,
    when: EntryConditions,
    /// The severity of its finding.
    pub severity: Severity,
    /// The consequence.
    pub cause: String,
    /// The remedy.
    pub cure: String,
    /// Where it is from.
    pub source: String,
    /// How sure it is.
    pub certainty: AdviceCertainty,
}

/// How sure an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AdviceCertainty {
    /// Somebody published a measurement, or several saw it.
    Measured,
    /// Read in the source of the driver, the kernel or the engine.
    SourceCode,
    /// The vendor says so.
    Documented,
    /// A single public report, which nobody has confirmed.
    OneReport,
}

impl AdviceCertainty {
    const NAMES: [(&'static str, Self); 4] = [
        ("measured", Self::Measured),
        ("source_code", Self::SourceCode),
        ("documented", Self::Documented),
        ("one_report", Self::OneReport),
    ];

    /// The words that `umawarden doctor` prints.
    pub fn words(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::SourceCode => "read in the source code",
            Self::Documented => "documented",
            Self::OneReport => "one report",
        }
    }
}

/// The conditions of an entry, all of which must hold.
#[derive(Clone, Debug, Default)]
struct EntryConditions {
    /// Empty: it is about the node, not about an engine.
    engines: Vec<EngineKind>,
    loaders: Vec<String>,
    options: PresentNames,
    variables: PresentNames,
    packages: Vec<(String, VersionRange<PackageVersion>)>,
    /// Profiles of the node.
    machines: Vec<String>,
    /// The size of a page.
    page_kib: Option<u64>,
    driver: Option<VersionRange<Vec<u32>>>,
    is_proprietary: bool,
    kernel: Option<(String, VersionRange<Vec<u32>>)>,
    dgx_os: Option<VersionRange<PackageVersion>>,
    /// Free CMA pages beyond the total of CMA, at least.
    hidden_cma_gib: Option<u64>,
}

/// Names of which one is present, or all are absent.
#[derive(Clone, Debug, Default)]
struct PresentNames {
    present: Vec<String>,
    absent: Vec<String>,
}

/// Versions from one on, and before another.
#[derive(Clone, Debug, Default)]
struct VersionRange<V> {
    from: Option<V>,
    before: Option<V>,
}

/// An engine's command, as it runs or as a unit starts it.
#[derive(Clone, Debug)]
pub struct StartedEngine {
    /// Its kind.
    pub engine: EngineKind,
    /// How it reads weights.
    pub loader: &'static Loader,
    /// The names of its options.
    pub options: BTreeSet<String>,
    /// The names of its variables that advice is about, or why they are unknown.
    pub variables: Result<BTreeSet<String>, String>,
    /// The versions of its packages.
    pub versions: Versions,
}

/// Versions of packages, by their names as [`package_name`] writes them.
#[derive(Clone, Debug, Default)]
pub struct Versions {
    /// Those that were found.
    pub known: BTreeMap<String, String>,
    /// Why no others were.
    pub otherwise: String,
}

impl StartedEngine {
    /// A command, and the versions of what it runs.
    pub fn new(command: LaunchCommand, versions: Versions) -> Self {
        let LaunchCommand { engine, loader, options, variables, .. } = command;
        Self { engine, loader, options, variables: Ok(variables), versions }
    }
}

/// Names that pip takes for the same package are the same.
pub fn package_name(text: &str) -> String {
    text.to_ascii_lowercase().replace(['_', '.'], "-")
}

/// Whether a condition holds.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ConditionResult {
    Yes,
    No,
    /// With the reason, unless another check reports it.
    Unknown(Option<String>),
}

impl From<bool> for ConditionResult {
    fn from(holds: bool) -> Self {
        if holds { Self::Yes } else { Self::No }
    }
}

impl ConditionResult {
    /// Whether both hold.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::No, _) | (_, Self::No) => Self::No,
            (Self::Unknown(Some(why)), _) | (_, Self::Unknown(Some(why))) => {
                Self::Unknown(Some(why))
            }
            (Self::Unknown(None), _) | (_, Self::Unknown(None)) => Self::Unknown(None),
            (Self::Yes, Self::Yes) => Self::Yes,
        }
    }

    fn of_fact<T>(fact: &Fact<T>, holds: impl FnOnce(&T) -> Self) -> Self {
        match fact {
            Fact::Is(value) => holds(value),
            Fact::Absent => Self::No,
            Fact::Unknown(why) => Self::Unknown(Some(why.clone())),
        }
    }

    /// Where another check reports why it is unknown.
    fn reported(self) -> Self {
        if matches!(self, Self::Unknown(_)) { Self::Unknown(None) } else { self }
    }
}

impl<V: Ord> VersionRange<V> {
    fn contains(&self, version: &V) -> bool {
        self.from.as_ref().is_none_or(|from| version >= from)
            && self.before.as_ref().is_none_or(|before| version < before)
    }
}

impl VersionRange<PackageVersion> {
    fn holds(&self, what: &str, text: &str) -> ConditionResult {
        let Some(version) = PackageVersion::parse(text) else {
            return ConditionResult::Unknown(Some(format!(
                "{what} has the version {text:?}, which is none"
            )));
        };
        if version.is_development() && self.before.is_some() && self.contains(&version) {
            let text = format!("{what} {text} was built between releases, and may have the fix");
            return ConditionResult::Unknown(Some(text));
        }
        self.contains(&version).into()
    }
}

impl PresentNames {
    fn hold(&self, names: &BTreeSet<String>) -> bool {
        let is_there = |name: &String| names.contains(name);
        (self.present.is_empty() || self.present.iter().any(is_there))
            && !self.absent.iter().any(is_there)
    }

    fn is_empty(&self) -> bool {
        self.present.is_empty() && self.absent.is_empty()
    }
}

impl EntryConditions {
    fn holds_on(&self, facts: &DoctorFacts) -> ConditionResult {
        let mut holds = ConditionResult::Yes;
        if !self.machines.is_empty() {
            let is_such = |found: &ProfileMisfits| self.machines.contains(&found.profile).into();
            holds = holds.and(ConditionResult::of_fact(&facts.settings, is_such).reported());
        }
        if let Some(page_kib) = self.page_kib {
            holds = holds.and((facts.page_bytes >> 10 == page_kib).into());
        }
        if self.driver.is_some() || self.is_proprietary {
            let is_in = |text: &String| match driver(text) {
                None => ConditionResult::Unknown(None),
                Some(found) => {
                    let range = self.driver.as_ref();
                    let is_in = range.is_none_or(|range| range.contains(&found.numbers));
                    (is_in && (!self.is_proprietary || found.is_proprietary)).into()
                }
            };
            holds = holds.and(ConditionResult::of_fact(&facts.driver, is_in).reported());
        }
        if let Some((flavour, range)) = &self.kernel {
            let is_in = |text: &String| match numbers::kernel(text) {
                None => ConditionResult::Unknown(None),
                Some(found) => {
                    (found.is_of_flavour(flavour) && range.contains(&found.numbers)).into()
                }
            };
            holds = holds.and(ConditionResult::of_fact(&facts.kernel, is_in).reported());
        }
        if let Some(range) = &self.dgx_os {
            let is_in = |text: &String| range.holds("DGX OS", text);
            holds = holds.and(ConditionResult::of_fact(&facts.dgx_os, is_in));
        }
        if let Some(least) = self.hidden_cma_gib {
            let is_more = |bytes: &u64| (bytes >> 30 >= least).into();
            holds = holds.and(ConditionResult::of_fact(&facts.hidden_cma_bytes, is_more));
        }
        holds
    }

    fn holds_for(&self, started: &StartedEngine) -> ConditionResult {
        let is_loader = |name: &String| name == started.loader.name;
        let is_such = self.engines.contains(&started.engine)
            && (self.loaders.is_empty() || self.loaders.iter().any(is_loader))
            && self.options.hold(&started.options);
        let mut holds = ConditionResult::from(is_such);
        if !self.variables.is_empty() {
            holds = holds.and(match &started.variables {
                Ok(variables) => self.variables.hold(variables).into(),
                Err(why) => ConditionResult::Unknown(Some(why.clone())),
            });
        }
        for (package, range) in &self.packages {
            holds = holds.and(match started.versions.known.get(package) {
                Some(text) => range.holds(package, text),
                None => {
                    let why = &started.versions.otherwise;
                    ConditionResult::Unknown(Some(format!(
                        "the version of {package} is unknown: {why}"
                    )))
                }
            });
        }
        holds
    }

    /// The name of the check that reports it.
    fn check(&self) -> &'static str {
        match self {
            _ if !self.loaders.is_empty() => "loader",
            _ if !self.engines.is_empty() => "advice",
            _ if self.kernel.is_some() || self.hidden_cma_gib.is_some() => "kernel",
            _ if self.driver.is_some() || self.is_proprietary => "driver",
            _ => "node",
        }
    }
}

impl AdviceTable {
    /// The advice inside the binary. `machines` are the names of all profiles.
    ///
    /// # Errors
    /// It has mistakes, which a test excludes.
    pub fn shipped(machines: &[&str]) -> Result<Self, Mistakes> {
        Self::parse(&SourceText::new("shipped:advice.yaml", SHIPPED), machines)
    }

    /// The text of the advice inside the binary.
    pub fn shipped_text() -> &'static str {
        SHIPPED
    }

    /// Reads a file of advice.
    ///
    /// # Errors
    /// It has mistakes.
    pub fn parse(source: &SourceText, machines: &[&str]) -> Result<Self, Mistakes> {
        read::parse(source, machines)
    }

    /// The packages whose versions it needs.
    pub fn packages(&self) -> BTreeSet<&str> {
        let all = self.entries.iter().flat_map(|entry| &entry.when.packages);
        all.map(|(package, _)| package.as_str()).collect()
    }

    /// The variables that it is about.
    pub fn variables(&self) -> BTreeSet<&str> {
        let names = self.entries.iter().map(|entry| &entry.when.variables);
        names
            .flat_map(|names| names.present.iter().chain(&names.absent))
            .map(|one| &**one)
            .collect()
    }

    /// The versions that the tag of an official image names.
    pub fn of_image(&self, image: Option<&str>) -> Versions {
        let Some(image) = image else {
            let otherwise = "it is known once the command runs".to_owned();
            return Versions { otherwise, ..Versions::default() };
        };
        let known = self.images.iter().find_map(|(repository, package)| {
            let (_, rest) = image.split_once(repository.as_str())?;
            let version = rest.split('@').next()?.strip_prefix(':')?;
            PackageVersion::of_tag(version)?;
            let version = PackageVersion::parse(version).map_or_else(
                || version.split('-').next().unwrap_or_default().to_owned(),
                |_| version.to_owned(),
            );
            Some((package.clone(), version))
        });
        let otherwise = format!("the image {image} does not name it");
        Versions { known: known.into_iter().collect(), otherwise }
    }
}

impl AdviceEntry {
    /// The condition that decides whether it is about the node alone.
    fn is_of_node(&self) -> bool {
        self.when.engines.is_empty()
    }

    /// The engines that it is about.
    pub fn engines(&self) -> &[EngineKind] {
        &self.when.engines
    }

    fn finding(&self, about: &str) -> Finding {
        let Self { cause, source, certainty, .. } = self;
        let text = format!("{about} {cause} ({}: {source})", certainty.words());
        Finding {
            id: Some(self.id.clone()),
            source: Some(source.clone()),
            certainty: Some(*certainty),
            ..Finding::new(self.when.check(), self.severity, text).fix(self.cure.clone())
        }
    }
}

/// What is known against the kernel, the driver or the node, as one check reports it.
pub(super) fn of_node(all: &DoctorFacts, check: &str) -> Vec<Finding> {
    let version = |fact: &Fact<String>| match fact {
        Fact::Is(text) => text.trim().to_owned(),
        Fact::Absent | Fact::Unknown(_) => String::new(),
    };
    let about = match check {
        "kernel" => format!("kernel {}", version(&all.kernel)),
        "driver" => {
            let text = version(&all.driver);
            format!("driver {}", driver(&text).map_or("", |found| found.text))
        }
        _ => "this node".to_owned(),
    };
    let is_of = |entry: &&AdviceEntry| entry.is_of_node() && entry.when.check() == check;
    let finding = |entry: &AdviceEntry| match entry.when.holds_on(all) {
        ConditionResult::Yes => Some(entry.finding(&about)),
        ConditionResult::Unknown(Some(why)) => {
            let text = format!("{why}; not examined: {}", entry.id);
            Some(Finding::new(entry.when.check(), Severity::Unknown, text))
        }
        ConditionResult::No | ConditionResult::Unknown(None) => None,
    };
    all.advice.entries.iter().filter(is_of).filter_map(finding).collect()
}

/// What is known against the engines that run, and against those that units start.
pub(super) fn examine(all: &DoctorFacts) -> Vec<Finding> {
    let mut started: Vec<(String, &StartedEngine)> = Vec::new();
    if let Fact::Is(loaders) = &all.loaders {
        started.extend(loaders.iter().filter_map(|running| match running {
            RunningLoader::Server { pid, started } => {
                let name = facts(started.engine).known_as.unwrap_or("engine");
                Some((format!("{name} (pid {pid})"), started))
            }
            RunningLoader::Holder { .. } => None,
        }));
    }
    if let Fact::Is((units, _)) = &all.units {
        let of_unit = |unit: &'_ super::UnitFacts| format!("unit {}", unit.name);
        for unit in units {
            started.extend(unit.starts.iter().map(|started| (of_unit(unit), started)));
        }
    }
    let mut findings: Vec<Finding> =
        started.iter().flat_map(|(subject, started)| of_engine(all, subject, started)).collect();
    if findings.is_empty() {
        let text = format!("nothing is known against the {} engines here", started.len());
        findings.push(Finding::ok("advice", text));
    }
    findings
}

fn of_engine(all: &DoctorFacts, subject: &str, started: &StartedEngine) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut unknown: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for entry in all.advice.entries.iter().filter(|entry| !entry.is_of_node()) {
        match entry.when.holds_on(all).and(entry.when.holds_for(started)) {
            ConditionResult::Yes => {
                findings.push(entry.finding(&about(entry, started)).of(subject))
            }
            ConditionResult::Unknown(Some(why)) => unknown.entry(why).or_default().push(&entry.id),
            ConditionResult::No | ConditionResult::Unknown(None) => {}
        }
    }
    findings.extend(unknown.into_iter().map(|(why, ids)| {
        let text = format!("{why}; not examined: {}", ids.join(", "));
        Finding::new("advice", Severity::Unknown, text).of(subject)
    }));
    findings
}

/// What the sentence of an entry is about: packages with their versions, a loader or an engine.
fn about(entry: &AdviceEntry, started: &StartedEngine) -> String {
    let version = |(package, _): &(String, _)| {
        started.versions.known.get(package).map(|version| format!("{package} {version}"))
    };
    let packages: Vec<String> = entry.when.packages.iter().filter_map(version).collect();
    if !packages.is_empty() {
        return packages.join(" with ");
    }
    match entry.when.loaders.is_empty() {
        true => facts(started.engine).known_as.unwrap_or("engine").to_owned(),
        false => format!("its loader ({})", started.loader.name),
    }
}
