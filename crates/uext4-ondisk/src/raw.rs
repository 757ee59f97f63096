//! The macro that declares a raw on-disk structure, its size check and its table of fields.

/// Declares a `#[repr(C)]` structure of bytes with the format's own field names.
///
/// The number in brackets is the size in bytes, checked at compile time. Each type gets `zeroed`,
/// `from_prefix`, `ref_from_prefix`, `mut_from_prefix`, `bytes` and `FIELDS` (name, offset, size).
macro_rules! raw_struct {
    ($(#[$meta:meta])* pub struct $name:ident [$size:expr] { $($field:ident : $ty:ty,)* }) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout,
            zerocopy::Immutable, zerocopy::Unaligned,
        )]
        #[repr(C)]
        #[allow(missing_docs)] // the format documentation has the fields' meaning
        pub struct $name { $(pub $field: $ty,)* }

        const _: () = assert!(size_of::<$name>() == $size);

        impl $name {
            /// Name, offset and size in bytes of each field.
            pub const FIELDS: &'static [(&'static str, usize, usize)] =
                &[$((stringify!($field), std::mem::offset_of!($name, $field), size_of::<$ty>()),)*];

            /// The structure with every byte zero.
            #[must_use]
            pub fn zeroed() -> Self {
                zerocopy::FromZeros::new_zeroed()
            }

            /// Copies the structure from the start of `bytes`; `None` when they are too few.
            #[must_use]
            pub fn from_prefix(bytes: &[u8]) -> Option<Self> {
                Self::ref_from_prefix(bytes).copied()
            }

            /// Views the start of `bytes`; `None` when they are too few.
            #[must_use]
            pub fn ref_from_prefix(bytes: &[u8]) -> Option<&Self> {
                <Self as zerocopy::FromBytes>::ref_from_prefix(bytes).ok().map(|(v, _)| v)
            }

            /// Views the start of `bytes` for writing; `None` when they are too few.
            #[must_use]
            pub fn mut_from_prefix(bytes: &mut [u8]) -> Option<&mut Self> {
                <Self as zerocopy::FromBytes>::mut_from_prefix(bytes).ok().map(|(v, _)| v)
            }

            /// The bytes as they are on disk.
            #[must_use]
            pub fn bytes(&self) -> &[u8] {
                zerocopy::IntoBytes::as_bytes(self)
            }
        }
    };
}
