//! Conversion of addresses in the forms that callers write.

use super::hosts;
use super::platform::Stack;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::io;

/// A value that can be converted to socket addresses, as `std::net::ToSocketAddrs` but without name
/// servers, which may take seconds to answer: literal addresses, `localhost`, and the names in
/// /etc/hosts are understood. The file is read once, when the first name is looked up.
///
/// # Examples
/// ```
/// use tailwater::net::ToSocketAddrs;
///
/// let text: Vec<_> = "10.0.0.1:53".to_socket_addrs().unwrap().collect();
/// let pair = (std::net::Ipv4Addr::new(10, 0, 0, 1), 53);
/// assert_eq!(text, pair.to_socket_addrs().unwrap().collect::<Vec<_>>());
/// assert_eq!("localhost:53".to_socket_addrs().unwrap().count(), 2);
/// assert!("no-such-host.invalid:53".to_socket_addrs().is_err());
/// ```
pub trait ToSocketAddrs {
    /// Iterator over the addresses, in the order in which they are tried.
    type Iter: Iterator<Item = SocketAddr>;

    /// Returns the addresses.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) for text that is not an address,
    /// [`NotFound`](io::ErrorKind::NotFound) for an unknown name.
    ///
    /// # Examples
    /// ```
    /// use tailwater::net::ToSocketAddrs;
    ///
    /// let mut addresses = "10.77.0.2:7".to_socket_addrs().unwrap();
    /// assert_eq!(addresses.next(), Some(([10, 77, 0, 2], 7).into()));
    /// ```
    fn to_socket_addrs(&self) -> io::Result<Self::Iter>;
}

macro_rules! one_address {
    ($($type:ty: |$this:ident| $address:expr;)+) => {$(
        impl ToSocketAddrs for $type {
            type Iter = core::iter::Once<SocketAddr>;
            fn to_socket_addrs(&self) -> io::Result<Self::Iter> {
                let $this = self;
                Ok(core::iter::once($address))
            }
        }
    )+};
}

one_address! {
    SocketAddr: |it| *it;
    SocketAddrV4: |it| SocketAddr::V4(*it);
    SocketAddrV6: |it| SocketAddr::V6(*it);
    (IpAddr, u16): |it| SocketAddr::new(it.0, it.1);
    (Ipv4Addr, u16): |it| SocketAddr::new(it.0.into(), it.1);
    (Ipv6Addr, u16): |it| SocketAddr::new(it.0.into(), it.1);
}

macro_rules! a_name {
    ($($type:ty: |$this:ident| $addresses:expr;)+) => {$(
        impl ToSocketAddrs for $type {
            type Iter = std::vec::IntoIter<SocketAddr>;
            fn to_socket_addrs(&self) -> io::Result<Self::Iter> {
                let $this = self;
                Ok($addresses?.into_iter())
            }
        }
    )+};
}

a_name! {
    (&str, u16): |it| host(it.0, it.1);
    (String, u16): |it| host(&it.0, it.1);
    str: |it| parse(it);
    String: |it| parse(it);
}

impl<'a> ToSocketAddrs for &'a [SocketAddr] {
    type Iter = core::iter::Copied<core::slice::Iter<'a, SocketAddr>>;
    fn to_socket_addrs(&self) -> io::Result<Self::Iter> {
        Ok(self.iter().copied())
    }
}

impl<T: ToSocketAddrs + ?Sized> ToSocketAddrs for &T {
    type Iter = T::Iter;
    fn to_socket_addrs(&self) -> io::Result<Self::Iter> {
        (**self).to_socket_addrs()
    }
}

fn parse(text: &str) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = text.parse() {
        return Ok(vec![address]);
    }
    let (name, port) =
        text.rsplit_once(':').ok_or_else(|| not_an_address(text, "a port after a colon is missing"))?;
    let port = port.parse().map_err(|_| not_an_address(text, "the port is not a number up to 65535"))?;
    host(name, port)
}

fn host(name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Ok(ip) = name.parse() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let possible = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    if name.is_empty() || !name.bytes().all(possible) {
        return Err(not_an_address(
            name,
            "it is neither an IP address nor a possible name; IPv6 with a port is [address]:port",
        ));
    }
    let found = hosts::look_up(name);
    if found.is_empty() {
        let why = format!(
            "{name:?} is not in /etc/hosts, and name servers are not asked here, because that may take seconds: resolve it with \
             std::net::ToSocketAddrs inside tailwater::blocking and pass the address"
        );
        return Err(io::Error::new(io::ErrorKind::NotFound, why));
    }
    Ok(found.into_iter().map(|ip| SocketAddr::new(ip, port)).collect())
}

fn not_an_address(text: &str, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{text:?} is not a socket address: {why}"))
}

/// Returns an address in a socket's notation: a socket bound to an IPv6 address reports IPv4 ones
/// as IPv4-mapped.
pub fn shown(address: SocketAddr, mapped: bool) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if mapped => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
        _ => address,
    }
}

/// Returns the error of a call that was given no address.
pub fn no_addresses() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "no addresses were given")
}

/// Returns the address within `stack` of a socket that a program binds to `local`, and whether that
/// is an IPv6 address: then the socket's IPv4 addresses are reported as IPv4-mapped.
///
/// # Errors
/// [`AddrNotAvailable`](io::ErrorKind::AddrNotAvailable) for an address that is not the runtime's.
pub fn bindable(stack: &Stack, local: SocketAddr) -> io::Result<(SocketAddr, bool)> {
    let ip = local.ip().to_canonical();
    if stack.is_bindable(ip) {
        return Ok((SocketAddr::new(ip, local.port()), local.is_ipv6()));
    }
    let own = stack.ip6().map_or_else(String::new, |ip| format!(" and {ip}"));
    let why = format!("{ip} is not an address of this runtime, which has {}{own}", stack.ip());
    Err(io::Error::new(io::ErrorKind::AddrNotAvailable, why))
}

/// Calls `f` with the addresses until it succeeds.
///
/// # Errors
/// The error of the last call, or of the conversion.
pub fn try_each<T>(
    addresses: impl ToSocketAddrs,
    mut f: impl FnMut(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let mut error = no_addresses();
    for address in addresses.to_socket_addrs()? {
        match f(address) {
            Ok(value) => return Ok(value),
            Err(e) => error = e,
        }
    }
    Err(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn localhost_has_both_addresses_ipv4_first() {
        let all: Vec<_> = ("localhost", 7).to_socket_addrs().unwrap().collect();
        assert_eq!(all, ["127.0.0.1:7", "[::1]:7"].map(|a| a.parse().unwrap()));
    }

    fn first(address: impl ToSocketAddrs) -> io::Result<SocketAddr> {
        address.to_socket_addrs().map(|mut all| all.next().unwrap())
    }

    #[test]
    fn literals_of_every_kind_are_understood() {
        let expected: SocketAddr = "10.0.0.1:7".parse().unwrap();
        let ip = Ipv4Addr::new(10, 0, 0, 1);
        assert_eq!(first("10.0.0.1:7").unwrap(), expected);
        assert_eq!(first(String::from("10.0.0.1:7")).unwrap(), expected);
        assert_eq!(first(("10.0.0.1", 7)).unwrap(), expected);
        assert_eq!(first((ip, 7)).unwrap(), expected);
        assert_eq!(first(&[expected][..]).unwrap(), expected);
        assert_eq!(first("LocalHost:7").unwrap(), "127.0.0.1:7".parse().unwrap());
        assert_eq!(first("[::1]:7").unwrap(), "[::1]:7".parse().unwrap());
    }

    #[test]
    fn what_is_no_address_is_refused_with_the_reason() {
        for (text, kind, reason) in [
            ("10.0.0.1", io::ErrorKind::InvalidInput, "port"),
            ("10.0.0.1:70000", io::ErrorKind::InvalidInput, "65535"),
            (":80", io::ErrorKind::InvalidInput, "possible name"),
            ("", io::ErrorKind::InvalidInput, "port"),
            ("no-such-host.invalid:80", io::ErrorKind::NotFound, "/etc/hosts"),
        ] {
            let error = first(text).unwrap_err();
            assert_eq!(error.kind(), kind, "{text}");
            assert!(error.to_string().contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn addresses_are_tried_in_turn_and_the_last_error_is_reported() {
        let all: Vec<SocketAddr> =
            ["[::1]:1", "10.0.0.1:1", "10.0.0.2:1"].iter().map(|a| a.parse().unwrap()).collect();
        let second = |a: SocketAddr| if a.is_ipv4() { Ok(a.ip()) } else { Err(io::Error::other("no")) };
        assert_eq!(try_each(&all[..], second).unwrap(), IpAddr::from([10, 0, 0, 1]));
        let error = try_each(&all[..], |a| Err::<(), _>(io::Error::other(a.to_string()))).unwrap_err();
        assert_eq!(error.to_string(), "10.0.0.2:1");
        assert_eq!(try_each(&all[..0], |_| Ok(())).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
