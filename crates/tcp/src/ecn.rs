//! The two bits of the IP header that signal congestion without loss (RFC 3168 section 5).

/// The ECN field of a packet's IP header: the low two bits of IPv4's type of service and IPv6's
/// traffic class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum EcnCodepoint {
    /// The endpoints do not take part.
    #[default]
    NotEct = 0,
    /// The endpoints take part; reserved for low-latency services (RFC 9331).
    Ect1 = 1,
    /// The endpoints take part.
    Ect0 = 2,
    /// A queue on the path was congested.
    Ce = 3,
}

impl EcnCodepoint {
    /// Decodes the low two bits; ignores the others.
    #[inline]
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            1 => Self::Ect1,
            2 => Self::Ect0,
            3 => Self::Ce,
            _ => Self::NotEct,
        }
    }

    /// Returns the two bits.
    #[inline]
    pub const fn bits(self) -> u8 {
        self as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_four_codepoints_are_their_bits() {
        for bits in 0..4 {
            assert_eq!(EcnCodepoint::from_bits(bits | 0xfc).bits(), bits);
        }
    }
}
