//! Versions of kernels and drivers: numbers, and what they are of.

/// A version from one of the node's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::doctor) struct FileVersion<'t> {
    /// Its text in the file.
    pub(in crate::doctor) text: &'t str,
    pub(super) numbers: Vec<u32>,
    /// A kernel's flavour; empty for the driver.
    flavour: &'t str,
    /// Whether a driver has its proprietary modules.
    pub(super) is_proprietary: bool,
}

impl FileVersion<'_> {
    /// Whether a kernel is of this flavour, or of one that begins with its name: `nvidia-64k`.
    pub(super) fn is_of_flavour(&self, flavour: &str) -> bool {
        let rest = self.flavour.strip_prefix(flavour);
        flavour.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    }
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
pub(super) fn kernel(text: &str) -> Option<FileVersion<'_>> {
    let text = text.trim();
    let (release, rest) = text.split_once('-')?;
    let (build, flavour) = rest.split_once('-')?;
    if text.len() > LONGEST {
        return None;
    }
    let mut all = numbers(release).filter(|numbers| numbers.len() == 3)?;
    all.extend(numbers(build).filter(|numbers| numbers.len() == 1)?);
    Some(FileVersion { text, numbers: all, flavour, is_proprietary: false })
}

/// `NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build …`.
pub(in crate::doctor) fn driver(text: &str) -> Option<FileVersion<'_>> {
    let line = text.lines().find(|line| line.starts_with("NVRM version:"))?;
    let version = |word: &'_ str| {
        let numbers = numbers(word).filter(|numbers| (2..=4).contains(&numbers.len()))?;
        let major = word.split('.').next()?;
        (major.len() == 3).then_some(numbers)
    };
    let mut words = line.split_ascii_whitespace();
    let (text, numbers) = words.find_map(|word| Some((word, version(word)?)))?;
    let is_proprietary = line.contains("Kernel Module") && !line.contains("Open Kernel Module");
    Some(FileVersion { text, numbers, flavour: "", is_proprietary })
}

/// A bound of a range: `590`, `460.27.04`, `6.17.0-1008`.
pub(super) fn bound(text: &str) -> Option<Vec<u32>> {
    let found = numbers(&text.replace('-', "."))?;
    (text.len() <= LONGEST && found.len() <= 4).then_some(found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn open(version: &str) -> String {
        format!(
            "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  {version}  Release Build"
        )
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
