//! Cookies of TCP Fast Open that servers have handed out (RFC 7413 section 4.1.3), by the server's
//! address.
//!
//! Owns at most [`MAX_SERVERS`] entries; a new one replaces the one that was used longest ago. A
//! path that drops or refuses SYNs with the option is remembered too: connections to the server
//! then do without for a minute, and twice as long after each further loss. The pause does not
//! grow while connections without the option to the same port fail as well: then the server is
//! away, and the option is not the cause.

use crate::platform::{Lock, Platform};
use alloc::collections::BTreeMap;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use tailwater_tcp::segment::Cookie;
use tailwater_tcp::{FastOpenOutcome, FastOpenPeer, Instant};

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
    /// The port of the last of them.
    lost_port: u16,
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

/// What an attempt to connect showed, whose SYN had the option.
#[derive(Debug, Clone, Copy)]
pub struct Attempt {
    pub cookie: Option<Cookie>,
    /// The segment size that the server announced.
    pub mss: u16,
    pub lost: bool,
    /// Time at which the SYN left.
    pub began: Instant,
}

impl Attempt {
    /// Returns the attempt of a client.
    pub fn of(outcome: FastOpenOutcome) -> Option<Self> {
        match outcome {
            FastOpenOutcome::Client { cookie, mss, lost, began } => Some(Self { cookie, mss, lost, began }),
            FastOpenOutcome::Server => None,
        }
    }
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
    pub fn note(&self, server: SocketAddr, result: &Attempt, now: Instant) {
        let mut servers = self.0.lock();
        let fresh = Server { peer: None, losses: 0, lost_port: 0, paused_until: Instant(0), used_at: now };
        let mut known = servers.get(&server.ip()).copied().unwrap_or(fresh);
        known.peer = result.cookie.map(|cookie| FastOpenPeer { cookie, mss: result.mss }).or(known.peer);
        // No attempt with the option begins during a pause. One that began before the end of the
        // present pause therefore began before the loss that caused it was known: they are lost
        // together and count once.
        if result.lost && result.began >= known.paused_until {
            known.losses = (known.losses + 1).min(MAX_DOUBLINGS);
            known.paused_until = now + PAUSE * (1 << (known.losses - 1));
            known.lost_port = server.port();
        } else if !result.lost {
            known.losses = 0;
        }
        known.used_at = now;
        if known.peer.is_none() && known.losses == 0 && known.paused_until <= now {
            servers.remove(&server.ip());
            return;
        }
        if servers.len() >= MAX_SERVERS
            && !servers.contains_key(&server.ip())
            && let Some(oldest) = servers.iter().min_by_key(|(_, it)| it.used_at).map(|(ip, _)| *ip)
        {
            servers.remove(&oldest);
        }
        servers.insert(server.ip(), known);
    }

    /// Records that the network ended an attempt to connect whose SYN did not have the option. The
    /// pause that began with a loss at the same port is not extended by the next one.
    pub fn note_plain_failure(&self, server: SocketAddr) {
        if let Some(known) = self.0.lock().get_mut(&server.ip())
            && known.lost_port == server.port()
        {
            known.losses = 0;
        }
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

    fn at(port: u16) -> SocketAddr {
        SocketAddr::new(SERVER, port)
    }

    /// Records an attempt that began in the second in which it ended.
    fn note(cookies: &Cookies<Single>, got: Option<u8>, lost: bool, second: u64) {
        let attempt = Attempt { cookie: got.map(cookie), mss: 1460, lost, began: after(second) };
        cookies.note(at(80), &attempt, after(second));
    }

    #[test]
    fn a_cookie_is_shown_until_another_comes() {
        let cookies = Cookies::<Single>::default();
        assert_eq!(cookies.offer(SERVER, after(0)), Offer::Request);
        note(&cookies, None, false, 0);
        assert_eq!(cookies.offer(SERVER, after(0)), Offer::Request, "the server has none");
        assert!(cookies.0.lock().is_empty());
        note(&cookies, Some(1), false, 1);
        let shown = |n, mss| Offer::Show(FastOpenPeer { cookie: cookie(n), mss });
        assert_eq!(cookies.offer(SERVER, after(2)), shown(1, 1460));
        note(&cookies, None, false, 2);
        assert_eq!(cookies.offer(SERVER, after(3)), shown(1, 1460));
        let other = Attempt { cookie: Some(cookie(2)), mss: 1220, lost: false, began: after(3) };
        cookies.note(at(80), &other, after(3));
        assert_eq!(cookies.offer(SERVER, after(4)), shown(2, 1220));
    }

    #[test]
    fn a_path_that_drops_the_option_is_left_alone_for_longer_and_longer() {
        let cookies = Cookies::<Single>::default();
        let mut now = 0;
        for losses in 0..14 {
            note(&cookies, None, true, now);
            let pause = 60 << losses.min(9);
            assert_eq!(cookies.offer(SERVER, after(now + pause - 1)), Offer::Nothing, "{losses} losses");
            now += pause;
            assert_eq!(cookies.offer(SERVER, after(now)), Offer::Request);
        }
        note(&cookies, Some(1), false, now);
        note(&cookies, None, true, now);
        assert_eq!(cookies.offer(SERVER, after(now + 59)), Offer::Nothing);
        assert!(matches!(cookies.offer(SERVER, after(now + 60)), Offer::Show(_)), "one loss again");
    }

    #[test]
    fn the_pause_does_not_grow_while_the_server_is_away() {
        let cookies = Cookies::<Single>::default();
        for minute in 0..60 {
            let now = 60 * minute;
            note(&cookies, Some(1), true, now);
            cookies.note_plain_failure(at(80));
            assert_eq!(cookies.offer(SERVER, after(now + 59)), Offer::Nothing, "the option may be the cause");
            assert!(matches!(cookies.offer(SERVER, after(now + 60)), Offer::Show(_)), "{minute}");
        }
        note(&cookies, None, true, 3600);
        // Another port may be closed on a server that is there.
        cookies.note_plain_failure(at(81));
        note(&cookies, None, true, 3660);
        assert_eq!(cookies.offer(SERVER, after(3660 + 119)), Offer::Nothing);
    }

    #[test]
    fn attempts_that_began_before_a_loss_was_known_count_once() {
        let cookies = Cookies::<Single>::default();
        // SYNs to a server that does not answer time out after 183 s, longer than the first pause.
        for began in 0..100 {
            let attempt = Attempt { cookie: Some(cookie(1)), mss: 1460, lost: true, began: after(began) };
            cookies.note(at(80), &attempt, after(began + 183));
        }
        assert_eq!(cookies.offer(SERVER, after(183 + 59)), Offer::Nothing);
        let shown = Offer::Show(FastOpenPeer { cookie: cookie(1), mss: 1460 });
        assert_eq!(cookies.offer(SERVER, after(183 + 60)), shown, "a cookie is kept, whatever was lost");
    }

    #[test]
    fn the_server_that_was_used_longest_ago_is_forgotten_first() {
        let cookies = Cookies::<Single>::default();
        let server = |n: u32| IpAddr::V4(core::net::Ipv4Addr::from_bits(0x0a00_0000 + n));
        let found = |n: u32, second: u64| {
            let began = after(second);
            let attempt = Attempt { cookie: Some(cookie(1)), mss: 1460, lost: false, began };
            cookies.note(SocketAddr::new(server(n), 80), &attempt, began);
        };
        for n in 0..MAX_SERVERS as u32 {
            found(n, n.into());
        }
        assert!(matches!(cookies.offer(server(0), after(5000)), Offer::Show(_)));
        found(1 << 20, 5001);
        assert_eq!(cookies.offer(server(1), after(5002)), Offer::Request, "forgotten");
        assert!(matches!(cookies.offer(server(0), after(5002)), Offer::Show(_)), "used since");
        assert_eq!(cookies.0.lock().len(), MAX_SERVERS);
    }
}
