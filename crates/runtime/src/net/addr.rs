//! Conversion of addresses in the forms that callers write, names included.
//!
//! Owns the trait [`ToSocketAddrs`]. Literals and `localhost` need no lookup. Other names are the C
//! library's to resolve, on an ordinary thread ([`crate::blocking`]), because that reads files and
//! waits for name servers. Nothing is kept: `nscd` or `systemd-resolved` cache for all programs.

use super::platform::Stack;
use core::fmt::Display;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::io;

/// A value that can be converted to socket addresses, as `std::net::ToSocketAddrs`.
///
/// Names are resolved as every program of the machine resolves them (/etc/nsswitch.conf: the hosts
/// file, then name servers), over Linux's network, and each time anew. That may take seconds, for
/// which the calling user thread waits without a core, also if its socket does not block. Elsewhere
/// the calling thread itself waits: under another executor, resolve names outside of futures.
/// `localhost` and literal addresses take no time.
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
    /// [`NotFound`](io::ErrorKind::NotFound) for a name without an address, or if no name server
    /// answers.
    ///
    /// # Panics
    /// For a name that has to be looked up, on a user thread within
    /// [`no_preempt`](crate::no_preempt) or in a handler of an event loop.
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
    Ok(resolve(name)?.into_iter().map(|ip| SocketAddr::new(ip, port)).collect())
}

/// Returns the addresses of a name in the order in which they should be tried.
fn resolve(name: &str) -> io::Result<Vec<IpAddr>> {
    let lower = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    let is_in =
        |domain: &str| lower.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    // RFC 6761 sections 6.3 and 6.4: these are not looked up.
    if is_in("localhost") {
        return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
    }
    let not_found = |why: &dyn Display| io::Error::new(io::ErrorKind::NotFound, format!("{name:?}: {why}"));
    if is_in("invalid") {
        return Err(not_found(&"no host has a name that ends in .invalid"));
    }
    let found = crate::blocking(|| std::net::ToSocketAddrs::to_socket_addrs(&(name, 0)));
    let addresses: Vec<_> = found.map_err(|error| not_found(&error))?.map(|address| address.ip()).collect();
    if addresses.is_empty() { Err(not_found(&"the name has no address")) } else { Ok(addresses) }
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
        for name in ["localhost", "LocalHost.", "a.localhost"] {
            let all: Vec<_> = (name, 7).to_socket_addrs().unwrap().collect();
            assert_eq!(all, ["127.0.0.1:7", "[::1]:7"].map(|a| a.parse().unwrap()), "{name}");
        }
    }

    #[test]
    fn names_are_those_of_the_machine() {
        let hosts = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
        let lines = hosts.lines().map(|line| line.split('#').next().unwrap_or_default());
        let mut names = lines.flat_map(|line| line.split_ascii_whitespace().skip(1));
        let Some(name) = names.find(|name| !name.starts_with("localhost")) else {
            return println!("skipped: /etc/hosts has no name but localhost");
        };
        let expected = std::net::ToSocketAddrs::to_socket_addrs(&(name, 7)).unwrap();
        let found = (name, 7).to_socket_addrs().unwrap();
        assert_eq!(found.collect::<Vec<_>>(), expected.collect::<Vec<_>>(), "{name}");
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
            ("no-such-host.invalid:80", io::ErrorKind::NotFound, ".invalid"),
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
