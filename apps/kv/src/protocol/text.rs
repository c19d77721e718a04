//! The text protocol: lines and data blocks (protocol.txt, "Commands"). Meta commands are in
//! [`super::meta`].
//!
//! Owns the meaning of lines and writes answers; [`super::connection`] buffers. Error strings are
//! memcached's. A line that ends with `noreply` silences even errors, as in memcached, except that
//! of an unknown command.

use std::sync::atomic::Ordering::Relaxed;

use super::bytes::{client_flags, number, push_number};
use super::dump::Dump;
use super::turn::{Block, Keys, Next, Reply, Turn};
use super::words::{BAD_LINE, NO_MEMORY, TOO_LARGE, Words};
use super::{meta, stats};
use crate::service::VERSION;
use crate::store::{Arithmetic, Counted, Delete, Deleted, Expiry, Get, MAX_KEY, Mode, Put, Stored};

const NOT_NUMERIC: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value";
const BAD_EXPTIME: &str = "CLIENT_ERROR invalid exptime argument";
/// Longest time between two steps of memcached's crawler, in us.
const MAX_SLEEP_US: u32 = 1_000_000;

/// Answers with one line unless the client requested silence.
fn say_unless(turn: &mut Turn, silent: bool, line: &str) {
    if !silent {
        turn.say(line);
    }
}

/// Executes a line, given without its end.
#[inline]
pub(super) fn command<'a>(line: &'a [u8], turn: &mut Turn) -> Next<'a> {
    // The most frequent command, without looking at each of its words twice.
    if line.starts_with(b"get ") {
        return get(line, turn, false);
    }
    let words = Words::of(line);
    let Some(&name) = words.first() else {
        turn.say("ERROR");
        return Next::Done;
    };
    match name {
        b"get" => get(line, turn, false),
        b"gets" => get(line, turn, true),
        b"gat" => get_and_touch(line, &words, turn, false),
        b"gats" => get_and_touch(line, &words, turn, true),
        b"set" => store(&words, turn, Mode::Set),
        b"add" => store(&words, turn, Mode::Add),
        b"replace" => store(&words, turn, Mode::Replace),
        b"append" => store(&words, turn, Mode::Append),
        b"prepend" => store(&words, turn, Mode::Prepend),
        b"cas" => compare_and_store(&words, turn),
        b"mg" | b"ms" | b"md" | b"ma" | b"mn" | b"me" => meta::command(&words, turn),
        b"quit" => Next::Close,
        b"stats" => stats::text(&words[1..], turn),
        b"lru_crawler" => crawler(&words, turn),
        // A browser was made to send this (memcached calls it a guard against SSRF).
        _ if is_http(&words) => Next::Close,
        _ => {
            simple(name, &words, turn);
            Next::Done
        }
    }
}

/// Commands of one line each way.
fn simple(name: &[u8], words: &[&[u8]], turn: &mut Turn) {
    match name {
        b"delete" => delete(words, turn),
        b"incr" => arithmetic(words, turn, true),
        b"decr" => arithmetic(words, turn, false),
        b"touch" => touch(words, turn),
        b"flush_all" => flush_all(words, turn),
        b"verbosity" => verbosity(words, turn),
        b"version" => {
            turn.out.extend_from_slice(b"VERSION ");
            turn.say(VERSION);
        }
        b"cache_memlimit" => memory_limit(words, turn),
        b"shutdown" => turn.say("ERROR: shutdown not enabled"),
        b"watch" => turn.say(
            "CLIENT_ERROR watch is not implemented: there is no log of requests; use stats, or tailwater trace",
        ),
        b"slabs" | b"lru" => turn.say(
            "CLIENT_ERROR slabs and lru are not implemented: memory has one class and nothing to balance",
        ),
        _ => turn.say("ERROR"),
    }
}

/// Commands whose line ends with the version of HTTP, as the first line of a request does.
fn is_http(words: &[&[u8]]) -> bool {
    const SIMPLE: [&[u8]; 12] = [
        b"delete",
        b"incr",
        b"decr",
        b"touch",
        b"flush_all",
        b"verbosity",
        b"version",
        b"cache_memlimit",
        b"shutdown",
        b"watch",
        b"slabs",
        b"lru",
    ];
    let known = words.first().is_some_and(|name| SIMPLE.contains(name));
    !known && words.last().is_some_and(|word| word.starts_with(b"HTTP/"))
}

/// `cache_memlimit MEBIBYTES [noreply]`.
fn memory_limit(words: &[&[u8]], turn: &mut Turn) {
    if !(2..=3).contains(&words.len()) {
        return turn.say("ERROR");
    }
    let silent = noreply(words);
    let Some(mebibytes) = number::<u32>(words[1]) else { return say_unless(turn, silent, "ERROR") };
    let said = match mebibytes {
        ..8 => "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m",
        1_000_000_001.. => "MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes",
        _ if turn.service.store.set_limit((mebibytes as usize) << 20, turn.now) => "OK",
        _ => "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust",
    };
    say_unless(turn, silent, said);
}

/// `lru_crawler`: lists items; its settings have no effect, since it always runs.
fn crawler<'a>(words: &[&[u8]], turn: &mut Turn) -> Next<'a> {
    match words[1..] {
        [b"metadump", b"all" | b"1" | b"hash"] => return Next::Dump(Dump::meta()),
        [b"metadump", _] => turn.say("BADCLASS invalid class id"),
        [b"enable" | b"disable"] | [b"crawl", _] => turn.say("OK"),
        [name @ (b"sleep" | b"tocrawl"), value] => turn.say(match number::<u32>(value) {
            None => "CLIENT_ERROR bad command line format",
            Some(us) if name == b"sleep" && us > MAX_SLEEP_US => {
                "CLIENT_ERROR sleep must be one second or less"
            }
            Some(_) => "OK",
        }),
        _ => turn.say("ERROR"),
    }
    Next::Done
}

/// Returns true if the last word asks for silence.
fn noreply(words: &[&[u8]]) -> bool {
    words.last() == Some(&&b"noreply"[..])
}

/// Handles a retrieval. Checks the lengths of all keys first, so that the answer to an invalid line
/// is only an error.
fn get<'a>(line: &'a [u8], turn: &mut Turn, with_cas: bool) -> Next<'a> {
    let mut words = line.split(|&c| c == b' ').filter(|word| !word.is_empty());
    words.next();
    let mut longest = None;
    for word in words {
        longest = longest.max(Some(word.len()));
    }
    match longest {
        None => turn.say("ERROR"),
        Some(len) if len > MAX_KEY => turn.say(BAD_LINE),
        Some(_) => {
            let name = line.iter().take_while(|&&c| c == b' ').count() + if with_cas { 4 } else { 3 };
            return Next::Keys { skip: name, keys: Keys { with_cas, touch: None } };
        }
    }
    Next::Done
}

fn get_and_touch<'a>(line: &'a [u8], words: &Words<'a>, turn: &mut Turn, with_cas: bool) -> Next<'a> {
    let Some(&word) = words.get(1) else {
        turn.say("ERROR");
        return Next::Done;
    };
    let Some(exptime) = number(word) else {
        turn.say(BAD_EXPTIME);
        return Next::Done;
    };
    if let Some(why) = turn.refusal() {
        turn.say(why);
        return Next::Done;
    }
    let skip = word.as_ptr().addr() - line.as_ptr().addr() + word.len();
    if line[skip..].split(|&c| c == b' ').any(|key| key.len() > MAX_KEY) {
        turn.say(BAD_LINE);
        return Next::Done;
    }
    Next::Keys { skip, keys: Keys { with_cas, touch: Some(Expiry::decode(exptime, turn.now)) } }
}

/// Appends the item of a key, if there is one; the value of a large one is left to the connection.
#[inline]
pub(super) fn value<'a>(key: &'a [u8], keys: &Keys, turn: &mut Turn) -> Next<'a> {
    let mut locked = turn.lock(key);
    let Some(hit) = locked.get(&Get { touch: keys.touch, ..Get::PLAIN }) else { return Next::Done };
    let facts = hit.facts;
    let pinned = if facts.value_len > turn.inline_limit {
        let Some(pinned) = locked.pin(&hit) else {
            drop(locked);
            turn.say("SERVER_ERROR out of memory writing get response");
            return Next::SkipLine;
        };
        Some(pinned)
    } else {
        None
    };
    let out = &mut *turn.out;
    out.extend_from_slice(b"VALUE ");
    out.extend_from_slice(key);
    out.push(b' ');
    push_number(out, facts.flags.into());
    out.push(b' ');
    push_number(out, facts.value_len as u64);
    if keys.with_cas {
        out.push(b' ');
        push_number(out, facts.cas);
    }
    out.extend_from_slice(b"\r\n");
    match pinned {
        Some(pinned) => Next::Send(pinned),
        None => {
            locked.append_value(&hit, out);
            out.extend_from_slice(b"\r\n");
            Next::Done
        }
    }
}

/// `set KEY FLAGS EXPTIME BYTES [noreply]` and its kin.
fn store<'a>(words: &Words<'a>, turn: &mut Turn, mode: Mode) -> Next<'a> {
    if !(5..=6).contains(&words.len()) {
        turn.say("ERROR");
        return Next::Done;
    }
    block(words, turn, |flags, expiry| Put::new(mode, flags, expiry))
}

/// `cas KEY FLAGS EXPTIME BYTES VERSION [noreply]`.
fn compare_and_store<'a>(words: &Words<'a>, turn: &mut Turn) -> Next<'a> {
    if !(6..=7).contains(&words.len()) {
        turn.say("ERROR");
        return Next::Done;
    }
    let Some(cas) = number(words[5]) else {
        say_unless(turn, noreply(words), BAD_LINE);
        return Next::Done;
    };
    let compare = Some(cas);
    block(words, turn, |flags, expiry| Put { compare, ..Put::new(Mode::Set, flags, expiry) })
}

fn block<'a>(words: &Words<'a>, turn: &mut Turn, put: impl FnOnce(u32, Expiry) -> Put) -> Next<'a> {
    let (key, silent) = (words[1], noreply(words));
    let numbers = (client_flags(words[2]), number::<i64>(words[3]), number::<i32>(words[4]));
    let (Some(flags), Some(exptime), Some(len @ 0..=MAX_BLOCK)) = numbers else {
        say_unless(turn, silent, BAD_LINE);
        return Next::Done;
    };
    if key.len() > MAX_KEY {
        say_unless(turn, silent, BAD_LINE);
        return Next::Done;
    }
    let put = put(flags, Expiry::decode(exptime, turn.now));
    Next::Block(Block { key, decoded: None, len: len as usize, put, reply: Reply::Text { silent } })
}

/// Longest data block that can be announced.
const MAX_BLOCK: i32 = i32::MAX - 2;

/// Answers a storing command.
pub(super) fn stored(stored: Stored, silent: bool, turn: &mut Turn) {
    let line = match stored {
        Stored::Stored { .. } => "STORED",
        Stored::NotStored => "NOT_STORED",
        Stored::Exists => "EXISTS",
        Stored::NotFound => "NOT_FOUND",
        Stored::TooLarge => TOO_LARGE,
        Stored::NoMemory => NO_MEMORY,
    };
    say_unless(turn, silent, line);
}

/// `delete KEY [0] [noreply]`; the 0 is the remainder of a time argument that was once allowed.
fn delete(words: &[&[u8]], turn: &mut Turn) {
    if !(2..=4).contains(&words.len()) {
        return turn.say("ERROR");
    }
    let silent = words.len() > 2 && noreply(words);
    let zero = words.get(2).is_some_and(|&word| word == b"0");
    let valid = match words.len() {
        2 => true,
        3 => zero || silent,
        _ => zero && silent,
    };
    if !valid {
        let usage = "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]";
        return say_unless(turn, silent, usage);
    }
    if words[1].len() > MAX_KEY {
        return say_unless(turn, silent, BAD_LINE);
    }
    if let Some(why) = turn.refusal() {
        return say_unless(turn, silent, why);
    }
    let deleted = turn.lock(words[1]).delete(&Delete::default());
    say_unless(turn, silent, if deleted == Deleted::Deleted { "DELETED" } else { "NOT_FOUND" });
}

/// `incr KEY DELTA [noreply]`.
fn arithmetic(words: &[&[u8]], turn: &mut Turn, up: bool) {
    if !(3..=4).contains(&words.len()) {
        return turn.say("ERROR");
    }
    let silent = noreply(words);
    if words[1].len() > MAX_KEY {
        return say_unless(turn, silent, BAD_LINE);
    }
    let Some(delta) = number(words[2]) else {
        return say_unless(turn, silent, "CLIENT_ERROR invalid numeric delta argument");
    };
    if let Some(why) = turn.refusal() {
        return say_unless(turn, silent, why);
    }
    let how =
        Arithmetic { up, delta, compare: 0, vivify: None, touch: None, binary_key: false, version: None };
    let counted = turn.lock(words[1]).arithmetic(&how);
    match counted {
        Counted::Value(value, _) if !silent => {
            push_number(turn.out, value);
            turn.out.extend_from_slice(b"\r\n");
        }
        Counted::Value(..) => {}
        // The command names no version.
        Counted::NotFound | Counted::Exists => say_unless(turn, silent, "NOT_FOUND"),
        Counted::NotNumeric => say_unless(turn, silent, NOT_NUMERIC),
        Counted::NoMemory => say_unless(turn, silent, "SERVER_ERROR out of memory"),
    }
}

/// `touch KEY EXPTIME [noreply]`.
fn touch(words: &[&[u8]], turn: &mut Turn) {
    if !(3..=4).contains(&words.len()) {
        return turn.say("ERROR");
    }
    let silent = noreply(words);
    if words[1].len() > MAX_KEY {
        return say_unless(turn, silent, BAD_LINE);
    }
    let Some(exptime) = number(words[2]) else { return say_unless(turn, silent, BAD_EXPTIME) };
    if let Some(why) = turn.refusal() {
        return say_unless(turn, silent, why);
    }
    let touch = Some(Expiry::decode(exptime, turn.now));
    let hit = turn.lock(words[1]).get(&Get { touch, fetch: false, ..Get::PLAIN });
    say_unless(turn, silent, if hit.is_some() { "TOUCHED" } else { "NOT_FOUND" });
}

/// `flush_all [DELAY] [noreply]`.
fn flush_all(words: &[&[u8]], turn: &mut Turn) {
    if words.len() > 3 {
        return turn.say("ERROR");
    }
    let silent = noreply(words);
    let delay = if words.len() > 1 + usize::from(silent) { number(words[1]) } else { Some(0) };
    let Some(delay) = delay else { return say_unless(turn, silent, BAD_EXPTIME) };
    if let Some(why) = turn.refusal() {
        return say_unless(turn, silent, why);
    }
    if turn.flush(delay) {
        say_unless(turn, silent, "OK");
    } else {
        say_unless(turn, silent, "CLIENT_ERROR flush_all not allowed");
    }
}

/// `verbosity LEVEL [noreply]`: stored and shown, without effect.
fn verbosity(words: &[&[u8]], turn: &mut Turn) {
    if !(2..=3).contains(&words.len()) {
        return turn.say("ERROR");
    }
    let silent = noreply(words);
    match number(words[1]) {
        Some(level) => {
            turn.service.verbosity.store(level, Relaxed);
            say_unless(turn, silent, "OK");
        }
        None => say_unless(turn, silent, BAD_LINE),
    }
}
