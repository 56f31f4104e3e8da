//! Fact faults of kernels and drivers, each with its source.
//!
//! To add one: an entry here. Its range is as wide as its source text, and somebody must have shown
//! it on a machine or in the source. A fault of all versions does not belong here.

use super::{Fact, Facts, Finding, Severity};

/// The profile of a DGX Spark and its twins.
const GB10: &str = "dgx-spark";

/// The faulty component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum In {
    /// A distribution kernel of this flavour, or of one that begins with its name: `-nvidia`,
    /// `-nvidia-64k`. Its version has four numbers: `6.17.0-1008`.
    Kernel { flavour: &'static str },
    /// The NVIDIA driver.
    Driver,
    /// The NVIDIA driver with proprietary modules.
    ProprietaryModules,
}

#[derive(Clone, Copy, Debug)]
struct Fault {
    of: In,
    /// The first version with it.
    since: &'static [u32],
    /// The first version without it, if known.
    until: Option<&'static [u32]>,
    /// Profiles of affected machines; empty: all machines.
    machines: &'static [&'static str],
    severity: Severity,
    /// The consequence.
    text: &'static str,
    /// The remedy.
    fix: &'static str,
    /// The source, and how certain it is.
    source: &'static str,
}

const FAULTS: [Fault; 6] = [
    Fault {
        of: In::Driver,
        since: &[590],
        until: None,
        machines: &[],
        severity: Severity::Warning,
        text: "keeps pools of freed pages (r590 and later): memory of a dead engine stays in use \
       until the driver's shrinkers run",
        fix: "wait at the gate with --prepare before a start: it writes 2 to drop_caches, which \
              runs them",
        source: "read in the driver's source",
    },
    Fault {
        of: In::Driver,
        since: &[455],
        until: Some(&[460, 27, 4]),
        machines: &[],
        severity: Severity::Warning,
        text: "fails to allocate kernel pages at random, and desktops freeze",
        fix: "driver 460.27.04 or a later one",
        source: "https://github.com/canonical/nvidia-graphics-drivers/issues/39",
    },
    Fault {
        of: In::ProprietaryModules,
        since: &[0],
        until: None,
        machines: &[GB10],
        severity: Severity::Problem,
        text: "has its proprietary modules, which do not support this GPU: Blackwell and later \
               need the open ones (Xid 169)",
        fix: "install the open flavour of the same driver (nvidia-driver-580-open)",
        source: "the driver's README, chapter Open Linux Kernel Modules; seen in \
                 https://github.com/Start9Labs/start-technologies/pull/3693",
    },
    Fault {
        of: In::Kernel { flavour: "nvidia" },
        since: &[6, 17, 0, 1008],
        until: Some(&[6, 17, 0, 1009]),
        machines: &[GB10],
        severity: Severity::Warning,
        text: "has panicked on machines of this kind, and left them without a driver at every \
               boot after that",
        fix: "a newer kernel of the distribution, and the vendor's firmware updates",
        source: "one analysis of users' crash records: \
                 https://forums.developer.nvidia.com/t/366026",
    },
    Fault {
        of: In::Kernel { flavour: "nvidia" },
        since: &[6, 17, 0, 1021],
        until: Some(&[6, 17, 0, 1022]),
        machines: &[GB10],
        severity: Severity::Warning,
        text: "panics when mstflint asks a ConnectX-7 whose cable was pulled and plugged in \
               since (mstflint_access)",
        fix: "do not run mstflint after a cable was moved before the next boot; or a newer kernel \
              of the distribution",
        source: "one report: https://github.com/Mellanox/mstflint/issues/1786",
    },
    Fault {
        of: In::Kernel { flavour: "nvidia" },
        since: &[7, 0, 0, 1019],
        until: Some(&[7, 0, 0, 1020]),
        machines: &[GB10],
        severity: Severity::Warning,
        text: "had every start of an engine over two nodes fail with NV_ERR_NO_MEMORY within \
               seconds (with driver 580.173.02)",
        fix: "boot the kernel that was there before it, and hold that: 6.17 of the same flavour",
        source: "one report: https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1358",
    },
];

/// A version from one of the node's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version<'t> {
    /// Its text in the file.
    pub(super) text: &'t str,
    pub(super) numbers: Vec<u32>,
    /// A kernel's flavour; empty for the driver.
    flavour: &'t str,
    is_proprietary: bool,
}

/// Longer texts are not versions.
const LONGEST: usize = 128;

fn numbers(text: &str) -> Option<Vec<u32>> {
    let digits = |part: &str| -> Option<u32> {
        let is_number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| part.parse().ok()).flatten()
    };
    text.split('.').map(digits).collect()
}

/// `6.17.0-1008-nvidia-64k`; `None` for another form.
pub(super) fn kernel(text: &str) -> Option<Version<'_>> {
    let text = text.trim();
    let (release, rest) = text.split_once('-')?;
    let (build, flavour) = rest.split_once('-')?;
    if text.len() > LONGEST {
        return None;
    }
    let mut all = numbers(release).filter(|numbers| numbers.len() == 3)?;
    all.extend(numbers(build).filter(|numbers| numbers.len() == 1)?);
    Some(Version { text, numbers: all, flavour, is_proprietary: false })
}

/// `NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build …`.
pub(super) fn driver(text: &str) -> Option<Version<'_>> {
    let line = text.lines().find(|line| line.starts_with("NVRM version:"))?;
    let version = |word: &'_ str| {
        let numbers = numbers(word).filter(|numbers| (2..=4).contains(&numbers.len()))?;
        let major = word.split('.').next()?;
        (major.len() == 3).then_some(numbers)
    };
    let mut words = line.split_ascii_whitespace();
    let (text, numbers) = words.find_map(|word| Some((word, version(word)?)))?;
    let is_proprietary = line.contains("Kernel Module") && !line.contains("Open Kernel Module");
    Some(Version { text, numbers, flavour: "", is_proprietary })
}

/// The known faults of this node's kernel, or of its driver.
pub(super) fn found(facts: &Facts, check: &'static str) -> Vec<Finding> {
    let (kernel, driver) = match check {
        "kernel" => (value(&facts.kernel).and_then(kernel), None),
        _ => (None, value(&facts.driver).and_then(driver)),
    };
    let profile = match &facts.settings {
        Fact::Is((profile, _)) => profile.as_str(),
        Fact::Absent | Fact::Unknown(_) => "",
    };
    let has = |fault: &&Fault| {
        let version = match fault.of {
            In::Kernel { .. } => &kernel,
            In::Driver | In::ProprietaryModules => &driver,
        };
        version.as_ref().is_some_and(|version| fault.is_of(version, profile))
    };
    let version = kernel.as_ref().or(driver.as_ref()).map_or("", |version| version.text);
    let finding = |fault: &Fault| {
        let text = format!("{check} {version} {} ({})", fault.text, fault.source);
        Finding::new(check, fault.severity, text).fix(fault.fix)
    };
    FAULTS.iter().filter(has).map(finding).collect()
}

fn value(fact: &Fact<String>) -> Option<&str> {
    match fact {
        Fact::Is(text) => Some(text),
        Fact::Absent | Fact::Unknown(_) => None,
    }
}

impl Fault {
    fn is_of(&self, version: &Version<'_>, profile: &str) -> bool {
        let is_such = match self.of {
            In::Kernel { flavour } => {
                let rest = version.flavour.strip_prefix(flavour);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
            }
            In::Driver => true,
            In::ProprietaryModules => version.is_proprietary,
        };
        let numbers = version.numbers.as_slice();
        let is_in = numbers >= self.since && self.until.is_none_or(|until| numbers < until);
        is_such && is_in && (self.machines.is_empty() || self.machines.contains(&profile))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::well;
    use super::*;

    fn severities(check: &'static str, text: &str, profile: &str) -> Vec<Severity> {
        let text = Fact::Is(text.to_owned());
        let facts = match check {
            "kernel" => Facts { kernel: text, ..well() },
            _ => Facts { driver: text, ..well() },
        };
        let settings = Fact::Is((profile.to_owned(), Vec::new()));
        let found = found(&Facts { settings, ..facts }, check);
        assert!(found.iter().all(|one| one.fix.is_some() && one.check == check), "{found:?}");
        found.iter().map(|one| one.severity).collect()
    }

    /// The check, the file's text, and the profile.
    type Node = (&'static str, String, &'static str);

    fn open(version: &str) -> String {
        format!(
            "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  {version}  Release Build"
        )
    }

    #[test]
    fn version_ranges_begin_and_end_as_in_their_source() {
        use Severity::{Problem, Warning};
        let proprietary = "NVRM version: NVIDIA UNIX aarch64 Kernel Module  580.173.02  Mon";
        let open = |version| ("driver", open(version), GB10);
        let kernel = |release: &str| ("kernel", release.to_owned(), GB10);
        let table: [(Node, &[Severity]); 24] = [
            (open("589.99.99"), &[]),
            (open("590.00"), &[Warning]),
            (open("610.43.02"), &[Warning]),
            (open("580.95.05"), &[]),
            (open("454.99"), &[]),
            (open("455.23.04"), &[Warning]),
            (open("460.27.03"), &[Warning]),
            (open("460.27.04"), &[]),
            (open("460.27"), &[Warning]),
            (open("580.173.02"), &[]),
            (("driver", proprietary.to_owned(), GB10), &[Problem]),
            // A discrete GPU may be older than Blackwell.
            (("driver", proprietary.to_owned(), "gh200"), &[]),
            (kernel("6.17.0-1007-nvidia"), &[]),
            (kernel("6.17.0-1008-nvidia"), &[Warning]),
            (kernel("6.17.0-1008-nvidia-64k"), &[Warning]),
            (kernel("6.17.0-1009-nvidia"), &[]),
            (kernel("6.17.0-1008-nvidiax"), &[]),
            (kernel("6.17.0-1008-generic"), &[]),
            (kernel("6.17.0-1021-nvidia"), &[Warning]),
            (kernel("6.17.0-1022-nvidia"), &[]),
            (kernel("7.0.0-1018-nvidia"), &[]),
            (kernel("7.0.0-1019-nvidia"), &[Warning]),
            (kernel("7.0.0-1020-nvidia"), &[]),
            (("kernel", "6.17.0-1008-nvidia".to_owned(), "gh200"), &[]),
        ];
        for ((check, text, profile), expected) in table {
            assert_eq!(severities(check, &text, profile), expected, "{text} on {profile}");
        }
    }

    #[test]
    fn each_fault_has_a_source_and_a_range_in_ascending_order() {
        for fault in FAULTS {
            assert!(fault.until.is_none_or(|until| fault.since < until), "{fault:?}");
            assert!(!fault.source.is_empty() && !fault.fix.is_empty(), "{fault:?}");
            let numbers = if matches!(fault.of, In::Kernel { .. }) { 4 } else { 1 };
            assert_eq!(fault.since.len(), numbers, "{fault:?}");
            assert!(fault.severity >= Severity::Warning, "{fault:?}");
        }
        let profiles = include_str!("../tune/profiles.yaml");
        for machine in FAULTS.iter().flat_map(|fault| fault.machines) {
            assert!(profiles.contains(&format!("- name: {machine}\n")), "{machine}");
        }
    }

    #[test]
    fn malformed_versions_are_none() {
        let long = format!("6.17.0-1008-{}", "nvidia-".repeat(20));
        for text in [
            "",
            "-",
            "--",
            "6",
            "6.17",
            "6.17.0",
            "6.17.0-1008",
            "6.17.0--nvidia",
            "6.17-1008-nvidia",
            "6.17.0.1-1008-nvidia",
            "6.17.99999999999-1008-nvidia",
            "6.17.0-1008.1-nvidia",
            "6.17.0-+1008-nvidia",
            "６.17.0-1008-nvidia",
            "-6.17.0-1008-nvidia",
            &long,
        ] {
            assert_eq!(kernel(text), None, "{text}");
        }
        for version in ["", ".", "580", "580.", ".580", "58.1", "5800.1", "580.x", "580.1.2.3.4"] {
            assert_eq!(driver(&open(version)), None, "{version}");
        }
        assert_eq!(driver("NVRM version: NVIDIA 580.99999999999.1"), None);
        assert_eq!(driver("GCC version: 580.95.05"), None);
        let text = "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release \
                    Build  (dvs-builder@U22)  Tue Sep 23 10:11:50 UTC 2025\nGCC version:  gcc 13";
        let found = driver(text).unwrap();
        assert_eq!(
            (found.text, &*found.numbers, found.is_proprietary),
            ("580.95.05", &[580, 95, 5][..], false)
        );
    }

    proptest! {
        #[test]
        fn any_text_is_a_version_or_none(text in "\\PC{0,300}|[0-9.\\-a-z ]{0,60}") {
            if let Some(version) = kernel(&text) {
                prop_assert_eq!(version.numbers.len(), 4);
            }
            let version = format!("NVRM version: {text}");
            for text in [text.as_str(), &version] {
                if let Some(version) = driver(text) {
                    prop_assert!(text.contains(version.text));
                    prop_assert!((2..=4).contains(&version.numbers.len()));
                }
            }
        }
    }
}
