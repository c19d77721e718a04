//! Lists without a bound: all items (`lru_crawler metadump`, `stats cachedump`) and all connections
//! (`stats conns`).
//!
//! Owns their lines, which are memcached's, and the place that a list has reached. A list is
//! written piece by piece between other output, so it takes no memory of its own. Each step is
//! bounded and a poll point.

use std::io::Write;

use super::stats;
use crate::service::Service;
use crate::store::{Crawl, Dumped, Now};

/// A list that is being written.
#[derive(Debug)]
pub(super) struct Dump {
    /// The place among the items.
    progress: Crawl,
    lines: Lines,
    /// Steps since output was last to be sent.
    steps: usize,
}

/// Steps of a list after which its output is sent, even if it is short.
const STEPS: usize = 128;

/// Connections that a step lists.
const PEERS: usize = 8;

/// What follows a step of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Listed {
    /// The next step.
    More,
    /// The next step, once the output is sent.
    Send,
    /// Nothing: the list is complete.
    All,
}

/// Its lines.
#[derive(Debug)]
enum Lines {
    /// `key=KEY exp=UNIX la=UNIX cas=N fetch=yes|no cls=1 size=BYTES`.
    Meta,
    /// `ITEM KEY [BYTES b; UNIX s]`, so many.
    Items(usize),
    /// `STAT N:addr ADDRESS` and the like, of the connections from this number on.
    Peers(u64),
}

impl Dump {
    /// Begins the list of `lru_crawler metadump`.
    pub fn meta() -> Self {
        Self::new(Lines::Meta)
    }

    /// Begins the list of `stats cachedump`, of at most `most` items.
    pub fn items(most: usize) -> Self {
        Self::new(Lines::Items(most))
    }

    /// Begins the list of `stats conns`.
    pub fn peers() -> Self {
        Self::new(Lines::Peers(0))
    }

    fn new(lines: Lines) -> Self {
        Self { progress: Crawl::default(), lines, steps: 0 }
    }

    /// Appends the items of one bucket, if there is one among the next, or some connections, and
    /// after the last ones the end of the list.
    pub fn write(&mut self, service: &Service, now: Now, out: &mut Vec<u8>) -> Listed {
        let more = match &mut self.lines {
            Lines::Peers(next) => {
                let peers = service.peers(*next, PEERS);
                let more = peers.len() == PEERS;
                *next = peers.last().map_or(*next, |(number, _)| number + 1);
                stats::connections(&peers, now, &mut |name, value| {
                    print(out, format_args!("STAT {name} {value}\r\n"));
                });
                more
            }
            lines => service.store.dump(&mut self.progress, now, |key, item| match lines {
                Lines::Items(0) | Lines::Peers(_) => {}
                Lines::Meta => meta_line(key, item, now, out),
                Lines::Items(left) => {
                    *left -= 1;
                    item_line(key, item, now, out);
                }
            }),
        };
        if !more || matches!(self.lines, Lines::Items(0)) {
            out.extend_from_slice(b"END\r\n");
            return Listed::All;
        }
        self.steps = (self.steps + 1) % STEPS;
        if self.steps == 0 { Listed::Send } else { Listed::More }
    }
}

fn meta_line(key: &[u8], item: &Dumped, now: Now, out: &mut Vec<u8>) {
    out.extend_from_slice(b"key=");
    for &octet in key {
        match octet {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(octet),
            _ => print(out, format_args!("%{octet:02X}")),
        }
    }
    let expiry = item.left.map_or(-1, |left| now.unix() + i64::from(left));
    let (accessed, fetched) = (now.unix() - i64::from(item.idle), if item.fetched { "yes" } else { "no" });
    let Dumped { cas, size, .. } = item;
    print(out, format_args!(" exp={expiry} la={accessed} cas={cas} fetch={fetched} cls=1 size={size}\n"));
}

fn item_line(key: &[u8], item: &Dumped, now: Now, out: &mut Vec<u8>) {
    let expiry = item.left.map_or(0, |left| now.unix() + i64::from(left));
    out.extend_from_slice(b"ITEM ");
    out.extend_from_slice(key);
    print(out, format_args!(" [{} b; {expiry} s]\r\n", item.value_len));
}

fn print(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    // Writing to memory does not fail.
    let _ = out.write_fmt(text);
}
