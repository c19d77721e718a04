//! Prefixes, port ranges and protocols as written in a configuration.
//!
//! Owns their types, parsing and printing. Every error says what was wrong and gives an example;
//! the TOML parser adds the line.

use core::fmt;
use core::marker::PhantomData;
use core::str::FromStr;
use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tailwater_wire::packet::{ICMP, ICMPV6, TCP, UDP};

/// An IPv4 or IPv6 prefix, such as 10.77.0.0/16, fd00::/8 or a single address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    network: IpAddr,
    len: u8,
}

impl Prefix {
    /// Returns the prefix of the first `len` bits of `network`.
    ///
    /// # Errors
    /// A message that says what is wrong, if `len` is longer than an address or `network` has bits
    /// after it.
    pub fn new(network: IpAddr, len: u8) -> Result<Self, String> {
        let most = if network.is_ipv4() { 32 } else { 128 };
        if len > most {
            return Err(format!("`{network}/{len}`: an address has {most} bits; write /0 to /{most}"));
        }
        let prefix = Self { network, len };
        let value = prefix.value();
        if value & !prefix.mask() != 0 {
            let fixed = value & prefix.mask();
            let fixed = match network {
                IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::from_bits(fixed as u32)),
                IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::from_bits(fixed)),
            };
            return Err(format!("`{network}/{len}` has bits after the prefix; write {fixed}/{len}"));
        }
        Ok(prefix)
    }

    /// Returns whether it is an IPv6 prefix.
    pub fn is_ipv6(self) -> bool {
        self.network.is_ipv6()
    }

    /// Returns whether `address` is of its family and begins with it.
    pub fn contains(self, address: IpAddr) -> bool {
        address.is_ipv6() == self.is_ipv6() && number(address) & self.mask() == self.value()
    }

    /// Returns the last address of an IPv4 prefix.
    pub(crate) fn last4(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.value() as u32 | !(self.mask() as u32))
    }

    /// Returns the network as a big-endian number, an IPv4 address in the low 32 bits.
    pub(super) fn value(self) -> u128 {
        number(self.network)
    }

    /// Returns the mask of the prefix; of IPv4, within the low 32 bits.
    pub(super) fn mask(self) -> u128 {
        let (bits, all) = if self.is_ipv6() { (128, u128::MAX) } else { (32, u128::from(u32::MAX)) };
        all & u128::MAX.checked_shl(bits - u32::from(self.len)).unwrap_or(0)
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(ip) => ip.to_bits().into(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

impl FromStr for Prefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("`{text}` is not a prefix; write for instance 10.77.0.0/16, fd00::/8 or 10.77.0.2");
        let (network, len) = text.split_once('/').map_or((text, None), |(network, len)| (network, Some(len)));
        let network: IpAddr = network.parse().map_err(|_| wrong())?;
        let whole = if network.is_ipv4() { 32 } else { 128 };
        let len = len.map_or(Ok(whole), str::parse).map_err(|_| wrong())?;
        Self::new(network, len)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.len)
    }
}

/// A range of ports, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortRange {
    /// The lowest port.
    pub first: u16,
    /// The highest port, not below `first`.
    pub last: u16,
}

impl FromStr for PortRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("`{text}` is not a port or range of ports; write for instance 80 or \"8000-8099\"");
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let port = |text: &str| text.trim().parse::<u16>().map_err(|_| wrong());
        let (first, last) = (port(first)?, port(last)?);
        if first > last {
            return Err(format!("`{text}` ends before it begins; write \"{last}-{first}\""));
        }
        Ok(Self { first, last })
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

/// An upper-layer protocol number (IANA "Assigned Internet Protocol Numbers"), written as a number
/// or as `tcp`, `udp`, `icmp` or `icmpv6`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Protocol(pub u8);

const PROTOCOLS: [(&str, u8); 4] = [("tcp", TCP), ("udp", UDP), ("icmp", ICMP), ("icmpv6", ICMPV6)];

impl Protocol {
    /// TCP (RFC 9293).
    pub const TCP: Self = Self(TCP);
    /// UDP (RFC 768).
    pub const UDP: Self = Self(UDP);
}

impl FromStr for Protocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = PROTOCOLS.iter().find(|(name, _)| *name == text).map(|&(_, number)| number);
        let number = named.or_else(|| text.parse().ok());
        number.map(Self).ok_or_else(|| {
            format!("`{text}` is not a protocol; write tcp, udp, icmp, icmpv6 or a number from 0 to 255")
        })
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match PROTOCOLS.iter().find(|(_, number)| *number == self.0) {
            Some((name, _)) => f.write_str(name),
            None => write!(f, "{}", self.0),
        }
    }
}

/// Serialises a value as text, and deserialises it from text or a plain number.
macro_rules! as_text {
    ($($type:ty, $expected:literal;)*) => {$(
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                from.deserialize_any($crate::firewall::text::Text::new($expected))
            }
        }
    )*};
}
pub(crate) use as_text;

as_text! {
    Prefix, "a prefix such as \"10.77.0.0/16\"";
    PortRange, "a port such as 80 or a range such as \"8000-8099\"";
    Protocol, "\"tcp\", \"udp\", \"icmp\", \"icmpv6\" or a number";
}

/// Reads a value from text or a plain number.
pub(crate) struct Text<T> {
    expected: &'static str,
    made: PhantomData<T>,
}

impl<T> Text<T> {
    /// `expected` completes a message about anything else.
    pub(crate) fn new(expected: &'static str) -> Self {
        Self { expected, made: PhantomData }
    }
}

impl<T: FromStr<Err = String>> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
}

/// Reads a list, or one item in place of a list of one. For `#[serde(deserialize_with)]`.
pub(crate) fn one_or_many<'de, D, T>(from: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err = String> + Deserialize<'de>,
{
    struct Many<T>(PhantomData<T>);

    impl<'de, T: FromStr<Err = String> + Deserialize<'de>> Visitor<'de> for Many<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("one value or a list of values")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Vec<T>, E> {
            Ok(vec![text.parse().map_err(E::custom)?])
        }

        fn visit_i64<E: de::Error>(self, number: i64) -> Result<Vec<T>, E> {
            self.visit_str(&number.to_string())
        }

        fn visit_u64<E: de::Error>(self, number: u64) -> Result<Vec<T>, E> {
            self.visit_str(&number.to_string())
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
            let mut items = Vec::new();
            while let Some(item) = list.next_element()? {
                items.push(item);
            }
            if items.is_empty() {
                return Err(de::Error::custom("the list is empty; leave the key out"));
            }
            Ok(items)
        }
    }

    from.deserialize_any(Many(PhantomData))
}
