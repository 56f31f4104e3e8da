//! Versions of Python packages, ordered as PEP 440 orders them.

use std::cmp::Ordering;

/// Longer texts are not versions.
const LONGEST: usize = 64;

/// More numbers in a release are not a version.
const MOST_NUMBERS: usize = 6;

/// A version, without its local part: `+cu130` names a build of the same version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PackageVersion {
    epoch: u32,
    release: Release,
    stage: ReleaseStage,
    /// 0: none; `.post3` is 4.
    post: u64,
    /// `.dev3`; of others the greatest.
    development: u64,
}

/// A release before its final one, or that. `1.0.dev3` precedes `1.0a1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ReleaseStage {
    Development,
    Alpha(u32),
    Beta(u32),
    Candidate(u32),
    Final,
}

/// The numbers of a release, of which zeros at the end do not count.
#[derive(Clone, Debug)]
struct Release(Vec<u32>);

impl Release {
    fn counted(&self) -> &[u32] {
        let end = self.0.iter().rposition(|number| *number != 0).map_or(0, |last| last + 1);
        &self.0[..end]
    }
}

impl PartialEq for Release {
    fn eq(&self, other: &Self) -> bool {
        self.counted() == other.counted()
    }
}

impl Eq for Release {}

impl PartialOrd for Release {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Release {
    fn cmp(&self, other: &Self) -> Ordering {
        self.counted().cmp(other.counted())
    }
}

impl PackageVersion {
    /// A version in a spelling of PEP 440. `None` for all else, such as `latest` or `main`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let lower = text.trim().to_ascii_lowercase();
        let (public, local) = match lower.split_once('+') {
            Some((public, local)) => (public, Some(local)),
            None => (lower.as_str(), None),
        };
        let is_local = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let has_local = local.is_none_or(|local| !local.is_empty() && local.bytes().all(is_local));
        if lower.len() > LONGEST || !has_local {
            return None;
        }
        let mut rest = RestOfVersion(public.strip_prefix('v').unwrap_or(public));
        let mut first = rest.number()?;
        let epoch = if rest.takes("!") { std::mem::replace(&mut first, rest.number()?) } else { 0 };
        let mut release = vec![first];
        while let Some(number) = rest.number_behind_dot() {
            release.push(number);
        }
        let stage = rest.stage()?;
        let post = rest.post()?;
        let development = rest.labelled(&["dev"])?;
        if !rest.0.is_empty() || release.len() > MOST_NUMBERS {
            return None;
        }
        let is_development = stage.is_none() && post.is_none() && development.is_some();
        let usual = if is_development { ReleaseStage::Development } else { ReleaseStage::Final };
        Some(Self {
            epoch,
            release: Release(release),
            stage: stage.unwrap_or(usual),
            post: post.map_or(0, |number| u64::from(number) + 1),
            development: development.map_or(u64::MAX, u64::from),
        })
    }

    /// The version in the tag of an image: `v0.29.0`, `v0.29.0-cu129`.
    pub(super) fn of_tag(tag: &str) -> Option<Self> {
        Self::parse(tag).or_else(|| Self::parse(tag.split_once('-')?.0))
    }

    /// Whether it was built between releases (`.devN`): it may have what a later release has.
    pub(super) fn is_development(&self) -> bool {
        self.development != u64::MAX
    }
}

/// What is left of a text.
struct RestOfVersion<'t>(&'t str);

impl RestOfVersion<'_> {
    fn takes(&mut self, start: &str) -> bool {
        let rest = self.0.strip_prefix(start);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn number(&mut self) -> Option<u32> {
        let end = self.0.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(self.0.len());
        let (digits, rest) = self.0.split_at(end);
        let number = digits.parse().ok()?;
        self.0 = rest;
        Some(number)
    }

    fn number_behind_dot(&mut self) -> Option<u32> {
        let mut behind = RestOfVersion(self.0.strip_prefix('.')?);
        let number = behind.number()?;
        self.0 = behind.0;
        Some(number)
    }

    /// `.rc1`, `-rc.1`, `rc`: a label of those, and its number, which may be missing. `None` if the
    /// number is no number; `Some(None)` without such a label.
    fn labelled(&mut self, labels: &[&str]) -> Option<Option<u32>> {
        let bare = self.0.trim_start_matches(['.', '_', '-']);
        let end = bare.bytes().position(|byte| !byte.is_ascii_alphabetic()).unwrap_or(bare.len());
        let (label, rest) = bare.split_at(end);
        if self.0.len() > bare.len() + 1 || !labels.contains(&label) {
            return Some(None);
        }
        let number = rest.trim_start_matches(['.', '_', '-']);
        let mut behind = RestOfVersion(if rest.len() <= number.len() + 1 { number } else { rest });
        let is_number = behind.0.starts_with(|next: char| next.is_ascii_digit());
        if is_number {
            let number = behind.number()?;
            self.0 = behind.0;
            return Some(Some(number));
        }
        self.0 = rest;
        Some(Some(0))
    }

    fn stage(&mut self) -> Option<Option<ReleaseStage>> {
        if let Some(number) = self.labelled(&["a", "alpha"])? {
            return Some(Some(ReleaseStage::Alpha(number)));
        }
        if let Some(number) = self.labelled(&["b", "beta"])? {
            return Some(Some(ReleaseStage::Beta(number)));
        }
        Some(self.labelled(&["c", "rc", "pre", "preview"])?.map(ReleaseStage::Candidate))
    }

    /// `.post1`, also as `-1`.
    fn post(&mut self) -> Option<Option<u32>> {
        if let Some(digits) = self.0.strip_prefix('-')
            && digits.starts_with(|next: char| next.is_ascii_digit())
        {
            self.0 = digits;
            return Some(Some(self.number()?));
        }
        self.labelled(&["post", "rev", "r"])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(text: &str) -> PackageVersion {
        PackageVersion::parse(text).unwrap_or_else(|| panic!("{text}"))
    }

    #[test]
    fn versions_are_in_the_order_of_pep_440() {
        // From the text of PEP 440, and from real packages.
        let ascending = [
            "0.23.0",
            "0.23.1rc1.dev1053+gf2317c227.d20260712",
            "0.23.1rc1",
            "0.24.0.dev3",
            "0.24.0a1",
            "0.24.0b2.dev1",
            "0.24.0b2",
            "0.24.0rc1",
            "0.24.0rc2",
            "0.24.0",
            "0.24.0.post1.dev2",
            "0.24.0.post1",
            "0.24.0.1",
            "0.24.1",
            "0.100.0",
            "1.0.dev0",
            "1!0.1",
        ];
        for pair in ascending.windows(2) {
            assert!(of(pair[0]) < of(pair[1]), "{pair:?}");
        }
        for (one, other) in [
            ("0.24", "0.24.0"),
            ("0.24.0+cu130", "0.24.0"),
            ("v0.24.0", "0.24.0"),
            ("0.24.0-rc.1", "0.24.0rc1"),
            ("0.24.0C1", "0.24.0rc1"),
            ("0.24.0rc", "0.24.0rc0"),
            ("0.5.6-1", "0.5.6.post1"),
            ("0.24.0alpha1", "0.24.0a1"),
            (" 0.24.0 ", "0.24.0"),
        ] {
            assert_eq!(of(one), of(other), "{one}");
        }
        assert!(of("0.23.1rc1.dev1053").is_development() && !of("0.24.0rc1").is_development());
    }

    #[test]
    fn garbage_is_no_version() {
        let long = "1.".repeat(40);
        for text in [
            "",
            "v",
            "latest",
            "main",
            "nightly-aarch64",
            "spark",
            "0.24.x",
            "0..24",
            "0.24.",
            ".24",
            "0.24.0rc1rc2",
            "0.24.0+",
            "0.24.0+a b",
            "0.24.0 final",
            "99999999999.1",
            "1.2.3.4.5.6.7",
            "0.24.0rc99999999999",
            "０.24",
            "-1",
            "1!",
            "0.24.0..dev1",
            &long,
        ] {
            assert_eq!(PackageVersion::parse(text), None, "{text}");
        }
    }

    #[test]
    fn the_tag_of_an_image_may_name_its_build() {
        for (tag, version) in [
            ("v0.29.0", Some("0.29.0")),
            ("v0.29.0-cu129-ubuntu2404", Some("0.29.0")),
            ("v0.5.6.post1-cu130", Some("0.5.6.post1")),
            ("v0.24.0-rc1", Some("0.24.0rc1")),
            ("v0.24.0-aarch64", Some("0.24.0")),
            ("spark", None),
            ("latest", None),
            ("nightly-aarch64", None),
        ] {
            assert_eq!(PackageVersion::of_tag(tag), version.map(of), "{tag}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_version_or_none(text in "\\PC{0,80}|[0-9v.!+_abcdeoprstv-]{0,30}") {
            let read = PackageVersion::parse(&text);
            let _ = PackageVersion::of_tag(&text);
            if let Some(read) = read {
                prop_assert!(text.bytes().any(|byte| byte.is_ascii_digit()));
                prop_assert_eq!(PackageVersion::parse(&format!("{}+local", text.trim())).is_some(),
                    !text.contains('+') && text.trim().len() + 6 <= LONGEST);
                prop_assert_eq!(read.cmp(&read), Ordering::Equal);
            }
        }

        #[test]
        fn releases_are_ordered_by_their_numbers(
            one in prop::collection::vec(0_u32..40, 1..=4),
            other in prop::collection::vec(0_u32..40, 1..=4),
        ) {
            let text = |numbers: &[u32]| {
                numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(".")
            };
            let padded = |numbers: &[u32]| {
                let mut padded = numbers.to_vec();
                padded.resize(4, 0);
                padded
            };
            let (one_text, other_text) = (text(&one), text(&other));
            prop_assert_eq!(of(&one_text).cmp(&of(&other_text)), padded(&one).cmp(&padded(&other)));
            let suffixed = |suffix: &str| of(&(one_text.clone() + suffix));
            prop_assert!(suffixed("rc1") < of(&one_text));
            prop_assert!(suffixed(".dev1") < suffixed("a0"));
            prop_assert!(of(&one_text) < suffixed(".post0"));
        }
    }
}
