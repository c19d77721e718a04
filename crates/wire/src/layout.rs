//! Headers as structs: reading their fields from bytes and writing them.
//!
//! Owns the `layout!` macro and the encoding of each type of field. Fields follow each other
//! without gaps, numbers in network order. A header is read by value: frames lie in rings at
//! offsets that fit no alignment, and once the reader is inlined only the fields that are used are
//! loaded.

/// A field of a header, or a header within a longer one.
pub trait Field: Sized {
    /// Its bytes.
    const LEN: usize;

    /// Reads it from `LEN` bytes.
    fn read(bytes: &[u8]) -> Self;

    /// Writes it to `LEN` bytes.
    fn write(&self, out: &mut [u8]);
}

macro_rules! number {
    ($($type:ty)+) => {$(
        impl Field for $type {
            const LEN: usize = size_of::<Self>();

            #[inline(always)]
            fn read(bytes: &[u8]) -> Self {
                Self::from_be_bytes(array(bytes))
            }

            #[inline(always)]
            fn write(&self, out: &mut [u8]) {
                out.copy_from_slice(&self.to_be_bytes());
            }
        }
    )+};
}

number! { u8 u16 u32 }

impl<const N: usize> Field for [u8; N] {
    const LEN: usize = N;

    #[inline(always)]
    fn read(bytes: &[u8]) -> Self {
        array(bytes)
    }

    #[inline(always)]
    fn write(&self, out: &mut [u8]) {
        out.copy_from_slice(self);
    }
}

#[inline(always)]
fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("a field is read from as many bytes as it has")
}

/// Declares a struct that is a field, made of fields, and states its length in bytes.
///
/// It gets `to_bytes`, the header as it is on the wire, and `split`, which reads it from the
/// beginning of a slice and returns the rest; `None` if the slice is too short.
macro_rules! layout {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident[$len:expr] {
            $($(#[$field_meta:meta])* $field_vis:vis $field:ident: $type:ty,)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        $vis struct $name {
            $($(#[$field_meta])* $field_vis $field: $type,)+
        }

        const _: () = assert!($len == 0 $(+ <$type as $crate::layout::Field>::LEN)+);

        impl $name {
            /// Returns the header as it is on the wire.
            #[inline(always)]
            $vis fn to_bytes(self) -> [u8; $len] {
                let mut bytes = [0; $len];
                $crate::layout::Field::write(&self, &mut bytes);
                bytes
            }

            #[inline(always)]
            #[allow(dead_code, reason = "not every layout begins a slice")]
            fn split(bytes: &[u8]) -> Option<(Self, &[u8])> {
                let (header, rest) = bytes.split_first_chunk::<{ $len }>()?;
                Some(($crate::layout::Field::read(header), rest))
            }
        }

        impl $crate::layout::Field for $name {
            const LEN: usize = $len;

            #[inline(always)]
            fn read(bytes: &[u8]) -> Self {
                $(let ($field, bytes) = bytes.split_at(<$type as $crate::layout::Field>::LEN);)+
                debug_assert!(bytes.is_empty());
                Self { $($field: <$type as $crate::layout::Field>::read($field),)+ }
            }

            #[inline(always)]
            fn write(&self, out: &mut [u8]) {
                $(
                    let (field, out) = out.split_at_mut(<$type as $crate::layout::Field>::LEN);
                    $crate::layout::Field::write(&self.$field, field);
                )+
                debug_assert!(out.is_empty());
            }
        }
    };
}

/// Makes structs around one field fields themselves.
macro_rules! newtypes {
    ($($name:ident($inner:ty))+) => {$(
        impl $crate::layout::Field for $name {
            const LEN: usize = <$inner as $crate::layout::Field>::LEN;

            #[inline(always)]
            fn read(bytes: &[u8]) -> Self {
                Self($crate::layout::Field::read(bytes))
            }

            #[inline(always)]
            fn write(&self, out: &mut [u8]) {
                $crate::layout::Field::write(&self.0, out);
            }
        }
    )+};
}

pub(crate) use {layout, newtypes};
