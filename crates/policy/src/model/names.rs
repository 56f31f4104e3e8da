//! Enums whose variants have names in public: in JSON, labels, configuration and logs.

/// Declares enums without data, each variant with its name.
///
/// Each gets `ALL`, `NAMES`, `CHOICES`, `name`, `named`, `Display`, and serde's form, which is the
/// name.
macro_rules! named {
    ($(
        $(#[$about:meta])*
        pub enum $kind:ident {
            $($(#[$of:meta])* $variant:ident = $name:literal,)+
        }
    )+) => {$(
        $(#[$about])*
        #[derive(
            Clone,
            Copy,
            Debug,
            PartialEq,
            Eq,
            PartialOrd,
            Ord,
            Hash,
            serde::Serialize,
            serde::Deserialize,
        )]
        pub enum $kind {
            $($(#[$of])* #[serde(rename = $name)] $variant,)+
        }

        impl $kind {
            /// The names of [`Self::ALL`].
            pub const NAMES: [&'static str; [$($name),+].len()] = [$($name),+];

            /// All variants, in the order of their declaration.
            pub const ALL: [Self; Self::NAMES.len()] = [$(Self::$variant),+];

            /// The names with their variants, in the same order.
            pub const CHOICES: [(&'static str, Self); Self::NAMES.len()] =
                [$(($name, Self::$variant)),+];

            /// The name in JSON, labels, configuration and logs.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// The variant of that name.
            pub fn named(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|known| known.name() == name)
            }
        }

        impl std::fmt::Display for $kind {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    )+};
}
pub(crate) use named;

#[cfg(test)]
mod tests {
    use crate::model::{CacheKind, EnginesRule, LoggedInRule, Mode, SentDecisions};

    #[test]
    fn choices_are_the_variants_by_their_names() {
        assert_eq!(Mode::CHOICES, Mode::ALL.map(|mode| (mode.name(), mode)));
        assert!(Mode::CHOICES.iter().all(|(name, mode)| Mode::named(name) == Some(*mode)));
    }

    /// Configurations, rule files and journals have them.
    #[test]
    fn names_in_files_stay() {
        assert_eq!(CacheKind::NAMES, ["pagecache", "all"]);
        assert_eq!(EnginesRule::NAMES, ["hold", "drain"]);
        assert_eq!(LoggedInRule::NAMES, ["hold", "warn"]);
        assert_eq!(SentDecisions::NAMES, ["none", "acts", "all"]);
        assert_eq!(serde_json::to_string(&CacheKind::PageCache).unwrap(), "\"pagecache\"");
    }
}
