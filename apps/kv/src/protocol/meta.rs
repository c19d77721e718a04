//! Meta commands: `mg`, `ms`, `md`, `ma`, `mn`, `me` (protocol.txt, "Meta Commands").
//!
//! A line is a command, a key, for `ms` a length, and flags: single letters, some followed by a
//! token. The flags are parsed once for the actions they request ([`Flags::parse`]), and read a
//! second time for the values they ask to return, in their order.

use std::sync::atomic::Ordering::Relaxed;

use super::bytes::{DecodedKey, client_flags, decode_base64, number, push_base64, push_number};
use super::turn::{Block, Next, Reply, Turn};
use super::words::{BAD_LINE, NO_MEMORY, TOO_LARGE, Words};
use crate::store::{
    Arithmetic, Counted, Delete, Deleted, Expiry, Facts, Get, MAX_KEY, MetaGet, Mode, Now, Put, Stored,
};

/// Maximum number of words of a line.
const MAX_META_WORDS: usize = 19;
/// Longest opaque token.
const MAX_OPAQUE: usize = 32;
const TOO_MANY: &str = "CLIENT_ERROR options flags are too long";
const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format";
const BAD_FLAG: &str = "CLIENT_ERROR invalid or duplicate flag";
const LONG_OPAQUE: &str = "CLIENT_ERROR opaque token too long";

/// The actions that the flags of a line request.
struct Flags {
    key: Option<DecodedKey>,
    value: bool,
    quiet: bool,
    no_bump: bool,
    touch: Option<Expiry>,
    vivify: Option<Expiry>,
    recache: Option<Expiry>,
    compare: Option<u64>,
    version: Option<u64>,
    client_flags: u32,
    invalidate: bool,
    mode: Option<u8>,
    initial: u64,
    delta: u64,
}

impl Flags {
    /// Parses the flags of a line.
    ///
    /// # Errors
    /// The line to answer with.
    fn parse(key: &[u8], words: &[&[u8]], now: Now) -> Result<Self, &'static str> {
        let mut flags = Self {
            key: None,
            value: false,
            quiet: false,
            no_bump: false,
            touch: None,
            vivify: None,
            recache: None,
            compare: None,
            version: None,
            client_flags: 0,
            invalidate: false,
            mode: None,
            initial: 0,
            delta: 1,
        };
        let mut seen = 0u128;
        let mut error = None;
        for word in words {
            let (flag, token) = (word[0], &word[1..]);
            let bit = 1u128.checked_shl(flag.into()).unwrap_or(0);
            if seen & bit != 0 {
                return Err("CLIENT_ERROR duplicate flag");
            }
            seen |= bit;
            match flags.take(flag, token, key, now) {
                Ok(true) => {}
                Ok(false) => return Err("CLIENT_ERROR invalid flag"),
                Err(why) => error = Some(why),
            }
        }
        error.map_or(Ok(flags), Err)
    }

    /// Applies one flag; returns false if there is none of that name.
    fn take(&mut self, flag: u8, token: &[u8], key: &[u8], now: Now) -> Result<bool, &'static str> {
        let time = || number(token).map(|time| Expiry::decode(time, now)).ok_or(BAD_TOKEN);
        match flag {
            b'b' => self.key = Some(decode_base64(key).ok_or("CLIENT_ERROR error decoding key")?),
            b'N' => self.vivify = Some(time()?),
            b'T' => self.touch = Some(time()?),
            b'R' => self.recache = Some(time()?),
            b'C' => self.compare = Some(number(token).ok_or(BAD_TOKEN)?),
            b'E' => self.version = Some(number(token).ok_or(BAD_TOKEN)?),
            b'F' => self.client_flags = client_flags(token).ok_or(BAD_LINE)?,
            b'M' if token.len() != 1 => return Err("CLIENT_ERROR incorrect length for M token"),
            b'M' => self.mode = Some(token[0]),
            b'J' => self.initial = number(token).ok_or("CLIENT_ERROR invalid numeric initial value")?,
            b'D' => self.delta = number(token).ok_or("CLIENT_ERROR invalid numeric delta value")?,
            b'v' => self.value = true,
            b'q' => self.quiet = true,
            b'u' => self.no_bump = true,
            b'I' => self.invalidate = true,
            b'O' | b'P' | b'L' | b'k' | b's' | b't' | b'c' | b'f' | b'l' | b'h' => {}
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Carries out a meta command.
pub(super) fn command<'a>(words: &Words<'a>, turn: &mut Turn) -> Next<'a> {
    if words[0] != b"ms" {
        turn.service.meta_commands.fetch_add(1, Relaxed);
    }
    if words[0] == b"mn" {
        turn.say("MN");
        return Next::Done;
    }
    if words[0] == b"me" {
        debug(words, turn);
        return Next::Done;
    }
    let Some(&key) = words.get(1) else {
        turn.say("ERROR");
        return Next::Done;
    };
    let problem =
        if key.len() > MAX_KEY { Some(BAD_LINE) } else { (words.len() > MAX_META_WORDS).then_some(TOO_MANY) };
    if let Some(problem) = problem {
        turn.say(problem);
        return Next::Done;
    }
    match words[0] {
        b"mg" => get(words, turn),
        b"ms" => set(words, turn),
        b"md" => delete(words, turn),
        _ => arithmetic(words, turn),
    }
}

fn refuse<'a>(turn: &mut Turn, why: &str) -> Next<'a> {
    turn.say(why);
    Next::Done
}

/// Returns true if an opaque token is too long.
fn long_opaque(words: &[&[u8]]) -> bool {
    words.iter().any(|word| word[0] == b'O' && word.len() > MAX_OPAQUE)
}

/// Appends a key in the encoding in which it was received.
fn push_key(out: &mut Vec<u8>, key: &[u8], binary: bool) {
    out.extend_from_slice(b" k");
    if binary {
        push_base64(out, key);
        out.extend_from_slice(b" b");
    } else {
        out.extend_from_slice(key);
    }
}

/// Appends the values that flags ask to return even without an item.
fn push_echo(out: &mut Vec<u8>, words: &[&[u8]], key: &[u8], binary: bool) {
    for word in words {
        match word[0] {
            b'O' => {
                out.push(b' ');
                out.extend_from_slice(word);
            }
            b'k' => push_key(out, key, binary),
            _ => {}
        }
    }
}

/// Appends the values that flags ask to return about an item.
fn push_facts(out: &mut Vec<u8>, words: &[&[u8]], key: &[u8], facts: &Facts) {
    let field = |out: &mut Vec<u8>, name: u8, value: u64| {
        out.extend_from_slice(&[b' ', name]);
        push_number(out, value);
    };
    for word in words {
        match word[0] {
            b's' => field(out, b's', facts.value_len as u64),
            b't' => match facts.ttl {
                Some(ttl) => field(out, b't', ttl.into()),
                None => out.extend_from_slice(b" t-1"),
            },
            b'c' => field(out, b'c', facts.cas),
            b'f' => field(out, b'f', facts.flags.into()),
            b'l' => field(out, b'l', facts.idle.into()),
            b'h' => field(out, b'h', facts.fetched.into()),
            _ => push_echo(out, &[word], key, facts.binary_key),
        }
    }
}

/// `mg KEY FLAGS*`.
fn get<'a>(words: &Words<'a>, turn: &mut Turn) -> Next<'a> {
    let flags = match Flags::parse(words[1], &words[2..], turn.now) {
        Ok(flags) => flags,
        Err(why) => return refuse(turn, why),
    };
    if long_opaque(&words[2..]) {
        return refuse(turn, LONG_OPAQUE);
    }
    let key = flags.key.as_ref().map_or(words[1], DecodedKey::as_bytes);
    let changes = flags.vivify.is_some() || flags.touch.is_some();
    let refusal = turn.refusal();
    if let Some(why) = refusal.filter(|_| changes) {
        return refuse(turn, why);
    }
    let vivify = flags.vivify.map(|expiry| (expiry, flags.key.is_some()));
    let meta =
        Some(MetaGet { vivify, version: flags.version, recache: flags.recache, passive: refusal.is_some() });
    let mut locked = turn.lock(key);
    let hit = locked.get(&Get { touch: flags.touch, bump: !flags.no_bump, fetch: true, meta });
    let out = &mut *turn.out;
    let Some(hit) = hit else {
        if !flags.quiet {
            out.extend_from_slice(b"EN");
            push_echo(out, &words[2..], key, flags.key.is_some());
            out.extend_from_slice(b"\r\n");
        }
        return Next::Done;
    };
    let pinned = if flags.value && hit.facts.value_len > turn.inline_limit {
        let Some(pinned) = locked.pin(&hit) else {
            drop(locked);
            return refuse(turn, "SERVER_ERROR out of memory writing get response");
        };
        Some(pinned)
    } else {
        None
    };
    if flags.value {
        out.extend_from_slice(b"VA ");
        push_number(out, hit.facts.value_len as u64);
    } else {
        out.extend_from_slice(b"HD");
    }
    push_facts(out, &words[2..], key, &hit.facts);
    for (set, letter) in [(hit.facts.token_sent, b'Z'), (hit.facts.stale, b'X'), (hit.facts.won, b'W')] {
        if set {
            out.extend_from_slice(&[b' ', letter]);
        }
    }
    out.extend_from_slice(b"\r\n");
    match pinned {
        Some(pinned) => return Next::Send(pinned),
        None if flags.value => {
            locked.append_value(&hit, out);
            out.extend_from_slice(b"\r\n");
        }
        None => {}
    }
    Next::Done
}

/// `ms KEY LENGTH FLAGS*`, and a block.
fn set<'a>(words: &Words<'a>, turn: &mut Turn) -> Next<'a> {
    let len = words.get(2).and_then(|&word| number::<i32>(word));
    let Some(len @ 0..=MAX_BLOCK) = len else { return refuse(turn, BAD_LINE) };
    let swallow = Next::Swallow(len as usize + 2);
    let flags = match Flags::parse(words[1], &words[3..], turn.now) {
        Ok(_) if long_opaque(&words[3..]) => Err(LONG_OPAQUE),
        flags => flags,
    };
    let flags = match flags {
        Ok(flags) => flags,
        Err(why) => {
            turn.say(why);
            return swallow;
        }
    };
    let mode = match flags.mode {
        None | Some(b'S' | b's') => Mode::Set,
        Some(b'E' | b'e') => Mode::Add,
        Some(b'A' | b'a') => Mode::Append,
        Some(b'P' | b'p') => Mode::Prepend,
        Some(b'R' | b'r') => Mode::Replace,
        Some(_) => {
            turn.say("CLIENT_ERROR invalid mode for ms M token");
            return swallow;
        }
    };
    let put = Put {
        compare: flags.compare,
        invalidate: flags.invalidate,
        vivify: flags.vivify,
        binary_key: flags.key.is_some(),
        version: flags.version,
        ..Put::new(mode, flags.client_flags, flags.touch.unwrap_or(Expiry::NEVER))
    };
    Next::Block(Block { key: words[1], decoded: flags.key, len: len as usize, put, reply: Reply::Meta })
}

/// Longest block that can be announced.
const MAX_BLOCK: i32 = i32::MAX - 2;

/// Answers the block of an `ms` line.
pub(super) fn stored(stored: Stored, line: &[u8], turn: &mut Turn) {
    // Counted here, because the line may be read several times until the block has arrived.
    turn.service.meta_commands.fetch_add(1, Relaxed);
    let words = Words::of(line);
    let quiet = words[3..].iter().any(|word| word[0] == b'q');
    let (code, version) = match stored {
        Stored::Stored { .. } if quiet => return,
        Stored::Stored { cas } => ("HD", cas),
        Stored::NotStored => ("NS", 0),
        Stored::Exists => ("EX", 0),
        Stored::NotFound => ("NF", 0),
        Stored::TooLarge => return turn.say(TOO_LARGE),
        Stored::NoMemory => return turn.say(NO_MEMORY),
    };
    turn.out.extend_from_slice(code.as_bytes());
    let binary = words[3..].iter().any(|word| word[0] == b'b');
    for word in &words[3..] {
        match word[0] {
            b'c' => {
                turn.out.extend_from_slice(b" c");
                push_number(turn.out, version);
            }
            // In the received encoding, which may be base64.
            b'k' => {
                push_key(turn.out, words[1], false);
                turn.out.extend_from_slice(if binary { b" b" } else { b"" });
            }
            _ => push_echo(turn.out, &[word], words[1], false),
        }
    }
    turn.out.extend_from_slice(b"\r\n");
}

/// `md KEY FLAGS*`.
fn delete<'a>(words: &Words<'a>, turn: &mut Turn) -> Next<'a> {
    let Ok(flags) = Flags::parse(words[1], &words[2..], turn.now) else { return refuse(turn, BAD_FLAG) };
    if long_opaque(&words[2..]) {
        return refuse(turn, LONG_OPAQUE);
    }
    let key = flags.key.as_ref().map_or(words[1], DecodedKey::as_bytes);
    if let Some(why) = turn.refusal() {
        return refuse(turn, why);
    }
    let invalidate = flags.invalidate.then_some(flags.touch);
    let how = Delete { compare: flags.compare, invalidate, version: flags.version };
    let code = match turn.lock(key).delete(&how) {
        Deleted::Deleted if flags.quiet => return Next::Done,
        Deleted::Deleted => "HD",
        Deleted::NotFound => "NF",
        Deleted::Exists => "EX",
    };
    turn.out.extend_from_slice(code.as_bytes());
    push_echo(turn.out, &words[2..], key, flags.key.is_some());
    turn.out.extend_from_slice(b"\r\n");
    Next::Done
}

/// `ma KEY FLAGS*`.
fn arithmetic<'a>(words: &Words<'a>, turn: &mut Turn) -> Next<'a> {
    let Ok(flags) = Flags::parse(words[1], &words[2..], turn.now) else { return refuse(turn, BAD_FLAG) };
    if long_opaque(&words[2..]) {
        return refuse(turn, LONG_OPAQUE);
    }
    if let Some(why) = turn.refusal() {
        return refuse(turn, why);
    }
    let up = match flags.mode {
        None | Some(b'I' | b'i' | b'+') => true,
        Some(b'D' | b'd' | b'-') => false,
        Some(_) => return refuse(turn, "CLIENT_ERROR invalid mode for ma M token"),
    };
    let key = flags.key.as_ref().map_or(words[1], DecodedKey::as_bytes);
    let how = Arithmetic {
        up,
        delta: flags.delta,
        compare: flags.compare.unwrap_or(0),
        vivify: flags.vivify.map(|expiry| (flags.initial, expiry)),
        touch: flags.touch,
        binary_key: flags.key.is_some(),
        version: flags.version,
    };
    let counted = turn.lock(key).arithmetic(&how);
    let code = match counted {
        Counted::Value(..) if flags.quiet => return Next::Done,
        Counted::Value(value, facts) => {
            push_counted(turn.out, value, &facts, flags.value, &words[2..], key);
            return Next::Done;
        }
        Counted::NotFound => "NF",
        Counted::Exists => "EX",
        Counted::NotNumeric => {
            return refuse(turn, "CLIENT_ERROR cannot increment or decrement non-numeric value");
        }
        Counted::NoMemory => return refuse(turn, "SERVER_ERROR out of memory"),
    };
    turn.out.extend_from_slice(code.as_bytes());
    push_echo(turn.out, &words[2..], key, flags.key.is_some());
    turn.out.extend_from_slice(b"\r\n");
    Next::Done
}

/// Appends the answer of a successful `ma`, which has no size, client flags or uses.
fn push_counted(
    out: &mut Vec<u8>,
    value: u64,
    facts: &Facts,
    wants_value: bool,
    words: &[&[u8]],
    key: &[u8],
) {
    if wants_value {
        out.extend_from_slice(b"VA ");
        push_number(out, value.checked_ilog10().map_or(1, |log| u64::from(log) + 1));
    } else {
        out.extend_from_slice(b"HD");
    }
    for word in words.iter().filter(|word| !matches!(word[0], b's' | b'f' | b'l' | b'h')) {
        push_facts(out, &[word], key, facts);
    }
    out.extend_from_slice(b"\r\n");
    if wants_value {
        push_number(out, value);
        out.extend_from_slice(b"\r\n");
    }
}

/// `me KEY [b]`: returns the facts about an item.
fn debug(words: &Words, turn: &mut Turn) {
    if !(2..=3).contains(&words.len()) || words[1].len() > MAX_KEY {
        return turn.say(BAD_LINE);
    }
    let decoded = if words.get(2).is_some_and(|&word| word == b"b") {
        let Some(key) = decode_base64(words[1]) else { return turn.say("CLIENT_ERROR error decoding key") };
        Some(key)
    } else {
        None
    };
    let key = decoded.as_ref().map_or(words[1], DecodedKey::as_bytes);
    let Some(facts) = turn.lock(key).peek() else { return turn.say("EN") };
    turn.out.extend_from_slice(b"ME ");
    turn.out.extend_from_slice(words[1]);
    let fetched = if facts.fetched { "yes" } else { "no" };
    let ttl = facts.ttl.map_or(-1, i64::from);
    let (idle, cas, size) = (facts.idle, facts.cas, facts.size);
    turn.say(&format!(" exp={ttl} la={idle} cas={cas} fetch={fetched} cls=1 size={size}"));
}
