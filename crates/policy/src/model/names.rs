//! Enums whose variants have names in public: in JSON, labels, configuration and logs.

/// Declares enums without data, each variant with its name.
///
/// Each gets `ALL`, `NAMES`, `name`, `named`, `Display`, and serde's form, which is the name.
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
