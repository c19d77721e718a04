//! Cookies of TCP Fast Open that servers have handed out (RFC 7413 section 4.1.3), by the server's
//! address.
//!
//! Owns at most [`MAX_SERVERS`] entries; a new one replaces the one that was used longest ago. A
//! path that drops or refuses SYNs with the option is remembered too: connections to the server
//! then do without for a minute, and twice as long after each further loss.

use crate::platform::{Lock, Platform};
use alloc::collections::BTreeMap;
use core::net::IpAddr;
use core::time::Duration;
use tailwater_tcp::segment::Cookie;
use tailwater_tcp::{FastOpenPeer, Instant};

/// Servers remembered: some 100 KiB.
const MAX_SERVERS: usize = 1024;
/// Time without Fast Open after the first loss, and the most doublings of it.
const PAUSE: Duration = Duration::from_mins(1);
const MAX_DOUBLINGS: u8 = 10;

#[derive(Debug, Clone, Copy)]
struct Server {
    peer: Option<FastOpenPeer>,
    /// Losses in a row of SYNs with the option.
    losses: u8,
    /// No SYN has the option before.
    paused_until: Instant,
    used_at: Instant,
}

/// What the SYN to a server may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// Leave out the option.
    Nothing,
    /// Ask for a cookie.
    Request,
    /// Show the cookie, and carry data.
    Show(FastOpenPeer),
}

/// See the module documentation.
#[derive(Debug)]
pub struct Cookies<P: Platform>(P::Lock<BTreeMap<IpAddr, Server>>);

impl<P: Platform> Default for Cookies<P> {
    fn default() -> Self {
        Self(Lock::new(BTreeMap::new()))
    }
}

impl<P: Platform> Cookies<P> {
    /// Returns what a SYN to `server` may do.
    pub fn offer(&self, server: IpAddr, now: Instant) -> Offer {
        match self.0.lock().get_mut(&server) {
            None => Offer::Request,
            Some(known) if now < known.paused_until => Offer::Nothing,
            Some(known) => {
                known.used_at = now;
                known.peer.map_or(Offer::Request, Offer::Show)
            }
        }
    }

    /// Records the result of an attempt to connect whose SYN had the option.
    pub fn note(&self, server: IpAddr, cookie: Option<Cookie>, mss: u16, lost: bool, now: Instant) {
        let mut servers = self.0.lock();
        let fresh = Server { peer: None, losses: 0, paused_until: Instant(0), used_at: now };
        let mut known = servers.get(&server).copied().unwrap_or(fresh);
        known.peer = cookie.map(|cookie| FastOpenPeer { cookie, mss }).or(known.peer);
        // Attempts that began together are lost together: they count once.
        if lost && now >= known.paused_until {
            known.losses = (known.losses + 1).min(MAX_DOUBLINGS);
            known.paused_until = now + PAUSE * (1 << (known.losses - 1));
        } else if !lost {
            known.losses = 0;
        }
        known.used_at = now;
        if known.peer.is_none() && known.losses == 0 {
            servers.remove(&server);
            return;
        }
        if servers.len() >= MAX_SERVERS
            && !servers.contains_key(&server)
            && let Some(oldest) = servers.iter().min_by_key(|(_, it)| it.used_at).map(|(ip, _)| *ip)
        {
            servers.remove(&oldest);
        }
        servers.insert(server, known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Single;

    const SERVER: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 1));

    fn cookie(n: u8) -> Cookie {
        Cookie::new(&[n; 8]).expect("a cookie")
    }

    fn after(seconds: u64) -> Instant {
        Instant(1 << 40) + Duration::from_secs(seconds)
    }

    #[test]
    fn a_cookie_is_shown_until_another_comes() {
        let cookies = Cookies::<Single>::default();
        assert_eq!(cookies.offer(SERVER, after(0)), Offer::Request);
        cookies.note(SERVER, None, 1460, false, after(0));
        assert_eq!(cookies.offer(SERVER, after(0)), Offer::Request, "the server has none");
        cookies.note(SERVER, Some(cookie(1)), 1460, false, after(1));
        let shown = |n, mss| Offer::Show(FastOpenPeer { cookie: cookie(n), mss });
        assert_eq!(cookies.offer(SERVER, after(2)), shown(1, 1460));
        cookies.note(SERVER, None, 1460, false, after(2));
        assert_eq!(cookies.offer(SERVER, after(3)), shown(1, 1460));
        cookies.note(SERVER, Some(cookie(2)), 1220, false, after(3));
        assert_eq!(cookies.offer(SERVER, after(4)), shown(2, 1220));
    }

    #[test]
    fn a_path_that_drops_the_option_is_left_alone_for_longer_and_longer() {
        let cookies = Cookies::<Single>::default();
        let mut now = 0;
        for losses in 0..14 {
            cookies.note(SERVER, None, 1460, true, after(now));
            let pause = 60 << losses.min(9);
            assert_eq!(cookies.offer(SERVER, after(now + pause - 1)), Offer::Nothing, "{losses} losses");
            now += pause;
            assert_eq!(cookies.offer(SERVER, after(now)), Offer::Request);
        }
        cookies.note(SERVER, Some(cookie(1)), 1460, false, after(now));
        cookies.note(SERVER, None, 1460, true, after(now));
        assert_eq!(cookies.offer(SERVER, after(now + 59)), Offer::Nothing);
        assert!(matches!(cookies.offer(SERVER, after(now + 60)), Offer::Show(_)), "one loss again");
    }

    #[test]
    fn losses_during_a_pause_do_not_extend_it() {
        let cookies = Cookies::<Single>::default();
        for second in 0..60 {
            cookies.note(SERVER, Some(cookie(1)), 1460, true, after(second));
            assert_eq!(cookies.offer(SERVER, after(second)), Offer::Nothing);
        }
        let shown = Offer::Show(FastOpenPeer { cookie: cookie(1), mss: 1460 });
        assert_eq!(cookies.offer(SERVER, after(60)), shown, "a cookie is kept, whatever was lost");
    }

    #[test]
    fn the_server_that_was_used_longest_ago_is_forgotten_first() {
        let cookies = Cookies::<Single>::default();
        let server = |n: u32| IpAddr::V4(core::net::Ipv4Addr::from_bits(0x0a00_0000 + n));
        for n in 0..MAX_SERVERS as u32 {
            cookies.note(server(n), Some(cookie(1)), 1460, false, after(n.into()));
        }
        assert!(matches!(cookies.offer(server(0), after(5000)), Offer::Show(_)));
        cookies.note(server(1 << 20), Some(cookie(1)), 1460, false, after(5001));
        assert_eq!(cookies.offer(server(1), after(5002)), Offer::Request, "forgotten");
        assert!(matches!(cookies.offer(server(0), after(5002)), Offer::Show(_)), "used since");
        assert_eq!(cookies.0.lock().len(), MAX_SERVERS);
    }
}
