//! The binary protocol (memcached's protocol_binary.h and its wiki page "BinaryProtocolRevamped"),
//! for clients that still use it: all commands, quiet ones included. SASL is an unknown command, as
//! in a memcached that was started without it.
//!
//! A packet that contradicts itself ends the connection, after an error if its command is known,
//! because the start of the next packet is unknown.

use super::packet::{Command, HEADER, Header, REQUEST, status};
use super::stats;
use super::turn::{Block, Next, Reply, Turn};
use crate::service::VERSION;
use crate::store::{Arithmetic, Counted, Delete, Deleted, Expiry, Get, Locked, Mode, Put, Stored};

/// Longest extras of any command.
const MAX_EXTRAS: usize = 20;
/// Expiration time that forbids creating a counter.
const NO_CREATE: u32 = u32::MAX;

/// Executes the packet at the beginning of `buffered`; returns the bytes consumed, which exclude
/// the value of an item to be stored, and the next step. `None` if the packet is incomplete.
pub(super) fn command<'a>(buffered: &'a [u8], turn: &mut Turn) -> Option<(usize, Next<'a>)> {
    let header = buffered.first_chunk::<HEADER>()?;
    let header = Header::decode(header);
    let head = header.extras_len + header.key_len;
    if buffered[0] != REQUEST || head > header.body_len {
        if buffered[0] == REQUEST {
            header.fail(turn.out, status::UNKNOWN);
        }
        return Some((HEADER, Next::Close));
    }
    let Some((command, quiet)) = header.command() else {
        header.fail(turn.out, status::UNKNOWN);
        return Some((HEADER, Next::Swallow(header.body_len)));
    };
    if header.extras_len > MAX_EXTRAS || !header.is_valid(command) {
        header.fail(turn.out, status::INVALID);
        return Some((HEADER, Next::Close));
    }
    let body = buffered.get(HEADER..HEADER + head)?;
    let is_change = matches!(command, Command::Get { touch: true, .. } | Command::Touch | Command::Delete)
        || matches!(command, Command::Count { .. } | Command::Flush);
    if is_change && turn.refusal().is_some() {
        refuse(&header, turn);
        return Some((HEADER + head, Next::Done));
    }
    let (extras, key) = body.split_at(header.extras_len);
    let four = |at: usize| u32::from_be_bytes(extras[at..at + 4].try_into().expect("the length is right"));
    let next = match command {
        Command::Store(mode) => {
            let (flags, exptime) = if extras.is_empty() { (0, 0) } else { (four(0), four(4)) };
            // Times have 32 bits without a sign: none is negative, and dates reach to 2106.
            let expiry = Expiry::decode(exptime.into(), turn.now);
            let compare = (header.cas != 0).then_some(header.cas);
            let put = Put { compare, ..Put::new(mode, flags, expiry) };
            let len = header.body_len - head;
            Next::Block(Block { key, decoded: None, len, put, reply: Reply::Binary(header) })
        }
        Command::Get { .. } | Command::Touch => {
            let touch = (!extras.is_empty()).then(|| Expiry::decode(four(0).into(), turn.now));
            get(&header, command, quiet, key, touch, turn)
        }
        Command::Count { up } => {
            let eight = |at: usize| u64::from(four(at)) << 32 | u64::from(four(at + 4));
            let expiry = four(16);
            let create = (expiry != NO_CREATE).then(|| (eight(8), Expiry::decode(expiry.into(), turn.now)));
            count(&header, key, up, eight(0), create, quiet, turn);
            Next::Done
        }
        Command::Flush => {
            let delay = if extras.is_empty() { 0 } else { four(0).into() };
            match turn.flush(delay) {
                true if quiet => {}
                true => header.succeed(turn.out, 0, &[]),
                false => header.fail(turn.out, status::UNKNOWN),
            }
            Next::Done
        }
        _ => simple(&header, command, quiet, key, turn),
    };
    Some((HEADER + head, next))
}

fn simple<'a>(header: &Header, command: Command, quiet: bool, key: &'a [u8], turn: &mut Turn) -> Next<'a> {
    let out = &mut *turn.out;
    match command {
        Command::Quit => {
            if !quiet {
                header.succeed(out, 0, &[]);
            }
            return Next::Close;
        }
        Command::Delete => {
            let compare = (header.cas != 0).then_some(header.cas);
            let how = Delete { compare, ..Delete::default() };
            let deleted = turn.lock(key).delete(&how);
            let out = &mut *turn.out;
            match deleted {
                Deleted::Deleted if quiet => {}
                Deleted::Deleted => header.succeed(out, 0, &[]),
                Deleted::NotFound => header.fail(out, status::NOT_FOUND),
                Deleted::Exists => header.fail(out, status::EXISTS),
            }
        }
        Command::Version => header.succeed(out, 0, VERSION.as_bytes()),
        Command::Stat => {
            let known = stats::each(key, turn.service, turn.now, |name, value| {
                header.statistic(out, name.as_bytes(), value.as_bytes());
            });
            if known { header.statistic(out, b"", b"") } else { header.fail(out, status::NOT_FOUND) }
        }
        _ => header.succeed(out, 0, &[]),
    }
    Next::Done
}

fn get<'a>(
    header: &Header,
    command: Command,
    quiet: bool,
    key: &'a [u8],
    touch: Option<Expiry>,
    turn: &mut Turn,
) -> Next<'a> {
    let with_key = matches!(command, Command::Get { key: true, .. });
    let with_value = command != Command::Touch;
    let mut locked: Locked = turn.lock(key);
    let hit = locked.get(&Get { touch, fetch: with_value, ..Get::PLAIN });
    let out = &mut *turn.out;
    let Some(hit) = hit else {
        match (quiet, with_key) {
            (true, _) => {}
            (false, true) => header.answer(out, status::NOT_FOUND, 0, [&[], key], 0),
            (false, false) => header.fail(out, status::NOT_FOUND),
        }
        return Next::Done;
    };
    let large = with_value && hit.facts.value_len > turn.inline_limit;
    let pinned = if large { locked.pin(&hit) } else { None };
    if large && pinned.is_none() {
        drop(locked);
        header.fail(out, status::NO_MEMORY);
        return Next::Done;
    }
    let flags = hit.facts.flags.to_be_bytes();
    let value_len = if with_value { hit.facts.value_len } else { 0 };
    let key = if with_key { key } else { &[] };
    header.answer(out, status::OK, hit.facts.cas, [&flags, key], value_len);
    match pinned {
        Some(pinned) => return Next::Send(pinned),
        None if with_value => locked.append_value(&hit, out),
        None => {}
    }
    Next::Done
}

fn count(
    header: &Header,
    key: &[u8],
    up: bool,
    delta: u64,
    vivify: Option<(u64, Expiry)>,
    quiet: bool,
    turn: &mut Turn,
) {
    let how =
        Arithmetic { up, delta, compare: header.cas, vivify, touch: None, binary_key: false, version: None };
    let counted = turn.lock(key).arithmetic(&how);
    match counted {
        Counted::Value(..) if quiet => {}
        Counted::Value(value, facts) => header.succeed(turn.out, facts.cas, &value.to_be_bytes()),
        Counted::NotFound => header.fail(turn.out, status::NOT_FOUND),
        Counted::Exists => header.fail(turn.out, status::EXISTS),
        Counted::NotNumeric => header.fail(turn.out, status::NOT_NUMERIC),
        Counted::NoMemory => header.fail(turn.out, status::NO_MEMORY),
    }
}

/// Answers a command that would change something while changes are refused.
pub(super) fn refuse(header: &Header, turn: &mut Turn) {
    header.fail(turn.out, status::TEMPORARY);
}

/// Answers a storing command.
pub(super) fn stored(stored: Stored, header: &Header, turn: &mut Turn) {
    let Some((Command::Store(mode), quiet)) = header.command() else { return };
    let status = match stored {
        Stored::Stored { .. } if quiet => return,
        Stored::Stored { cas } => return header.succeed(turn.out, cas, &[]),
        Stored::NotStored => match mode {
            Mode::Add => status::EXISTS,
            Mode::Replace => status::NOT_FOUND,
            Mode::Set | Mode::Append | Mode::Prepend => status::NOT_STORED,
        },
        Stored::Exists => status::EXISTS,
        Stored::NotFound => status::NOT_FOUND,
        Stored::TooLarge => status::TOO_LARGE,
        Stored::NoMemory => status::NO_MEMORY,
    };
    header.fail(turn.out, status);
}
