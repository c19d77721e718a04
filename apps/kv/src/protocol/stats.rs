//! `stats` and its sub-commands.
//!
//! The names are memcached's. Statistics without a meaning here are left out rather than invented;
//! memory has one class, that of cells of 64 bytes.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::bytes::number;
use super::dump::Dump;
use super::turn::{Next, Turn};
use crate::replicate::{Copy, Link};
use crate::service::{Peer, Service, VERSION};
use crate::store::{CELL_BYTES, Now, Totals};

/// Maximum number of connections listed in the binary protocol.
const MAX_PEERS: usize = 200;
/// Maximum bytes per connection: three statistics behind 24 bytes each in the binary protocol, with
/// an IPv6 address and numbers of 20, 20, 20 and 10 digits.
const PEER: usize = 240;
/// Longest answer in bytes; the other groups' are shorter than half of it.
pub(super) const MAX_LEN: usize = MAX_PEERS * PEER + 1024;

/// Answers a line; `words` are those after `stats`.
pub(super) fn text<'a>(words: &[&[u8]], turn: &mut Turn) -> Next<'a> {
    if let [b"cachedump", class, most, ..] = words {
        return dump(class, most, turn);
    }
    if let [b"conns", ..] = words {
        return Next::Dump(Dump::peers());
    }
    lines(words, turn);
    Next::Done
}

/// `stats cachedump CLASS LIMIT`: there is one class, and 0 stands for all items.
fn dump<'a>(class: &[u8], most: &[u8], turn: &mut Turn) -> Next<'a> {
    let (Some(class), Some(most)) = (number::<u32>(class), number::<u32>(most)) else {
        turn.say("CLIENT_ERROR bad command line format");
        return Next::Done;
    };
    match class {
        1 => return Next::Dump(Dump::items(if most == 0 { usize::MAX } else { most as usize })),
        0 | 2..=63 => turn.say("END"),
        _ => turn.say("CLIENT_ERROR Illegal slab id"),
    }
    Next::Done
}

fn lines(words: &[&[u8]], turn: &mut Turn) {
    let (service, now) = (turn.service, turn.now);
    match words.first().copied().unwrap_or_default() {
        b"reset" => {
            service.reset_counters();
            return turn.say("RESET");
        }
        b"detail" => return turn.say(detail(words.get(1).copied().unwrap_or_default())),
        b"cachedump" => return turn.say("CLIENT_ERROR bad command line"),
        _ => {}
    }
    let group = words.first().copied().unwrap_or_default();
    let before = turn.out.len();
    let known = each(group, service, now, |name, value| {
        for part in ["STAT ", name, " ", value, "\r\n"] {
            turn.out.extend_from_slice(part.as_bytes());
        }
    });
    turn.say(if known { "END" } else { "ERROR" });
    debug_assert!(turn.out.len() - before <= MAX_LEN, "{group:?} writes too much");
}

/// Returns the answer to `stats detail`: there are no statistics by prefix of keys, so they can be
/// turned off only.
fn detail(word: &[u8]) -> &'static str {
    match word {
        b"off" => "OK",
        b"on" | b"dump" => {
            "CLIENT_ERROR stats detail is not implemented: keys are not counted by prefix; use stats"
        }
        _ => "CLIENT_ERROR usage: stats detail on|off|dump",
    }
}

/// Calls `take` for each statistic of a group, with name and value; returns false if there is no
/// such group.
pub(super) fn each(group: &[u8], service: &Service, now: Now, mut take: impl FnMut(&str, &str)) -> bool {
    let take = &mut take;
    match group {
        b"" => general(service, now, take),
        b"settings" => settings(service, take),
        b"items" => items(service, now, take),
        b"slabs" => slabs(service, now, take),
        b"sizes" => {
            for (size, count) in service.store.sizes(now) {
                take(&size.to_string(), &count.to_string());
            }
        }
        b"conns" => connections(&service.peers(0, MAX_PEERS), now, take),
        b"replication" => return replication(service, take),
        b"reset" => service.reset_counters(),
        _ => return false,
    }
    true
}

fn general(service: &Service, now: Now, take: &mut dyn FnMut(&str, &str)) {
    let totals = service.store.totals(now);
    let counters = &totals.counters;
    take("pid", &std::process::id().to_string());
    take("version", VERSION);
    if let Some([user, system]) = processor_time() {
        take("rusage_user", &user);
        take("rusage_system", &system);
    }
    let numbers = [
        ("uptime", u64::from(now.seconds - Now::FIRST)),
        ("time", now.unix() as u64),
        ("pointer_size", 8 * size_of::<usize>() as u64),
        ("max_connections", service.settings.max_connections.into()),
        ("curr_connections", service.connections() as u64),
        ("total_connections", service.total_connections.load(Relaxed)),
        ("rejected_connections", service.rejected_connections.load(Relaxed)),
        ("idle_kicks", service.idle_kicks.load(Relaxed)),
        ("cmd_get", counters.cmd_get),
        ("cmd_set", counters.cmd_set),
        ("cmd_flush", service.flushes.load(Relaxed)),
        ("cmd_touch", counters.cmd_touch),
        ("cmd_meta", service.meta_commands.load(Relaxed)),
        ("get_hits", counters.get_hits),
        ("get_misses", counters.get_misses),
        ("get_expired", counters.get_expired),
        ("get_flushed", counters.get_flushed),
        ("delete_misses", counters.delete_misses),
        ("delete_hits", counters.delete_hits),
        ("incr_misses", counters.incr_misses),
        ("incr_hits", counters.incr_hits),
        ("decr_misses", counters.decr_misses),
        ("decr_hits", counters.decr_hits),
        ("cas_misses", counters.cas_misses),
        ("cas_hits", counters.cas_hits),
        ("cas_badval", counters.cas_badval),
        ("touch_hits", counters.touch_hits),
        ("touch_misses", counters.touch_misses),
        ("store_too_large", counters.too_large),
        ("store_no_memory", counters.out_of_memory),
        ("auth_cmds", 0),
        ("auth_errors", 0),
        ("bytes_read", service.bytes_read.load(Relaxed)),
        ("bytes_written", service.bytes_written.load(Relaxed)),
        ("limit_maxbytes", service.store.limit()),
        ("connection_structures", service.connections() as u64),
        // What cannot happen here: one thread serves one connection, and accepting never stops.
        ("conn_yields", 0),
        ("listen_disabled_num", 0),
        ("time_in_listen_disabled_us", 0),
        ("accepting_conns", 1),
        ("threads", service.settings.threads.into()),
        ("hash_power_level", totals.buckets.ilog2().into()),
        ("hash_bytes", totals.buckets * 4),
        ("hash_is_expanding", 0),
        ("slab_reassign_running", 0),
        ("slabs_moved", 0),
        // Scripts wait for 0 after `lru_crawler crawl`, and the crawler here never ends.
        ("lru_crawler_running", 0),
        ("lru_crawler_starts", 1),
        ("malloc_fails", 0),
        ("bytes", totals.bytes),
        ("curr_items", totals.items),
        ("total_items", counters.total_items),
        ("expired_unfetched", counters.expired_unfetched),
        ("evicted_unfetched", counters.evicted_unfetched),
        ("evicted_active", counters.evicted_active),
        ("evictions", counters.evictions),
        ("reclaimed", counters.reclaimed),
        ("crawler_reclaimed", counters.crawler_reclaimed),
        ("crawler_items_checked", counters.crawler_items_checked),
        ("moves_to_warm", counters.promoted),
    ];
    for (name, value) in numbers {
        take(name, &value.to_string());
    }
}

/// Clock ticks in a second, as procfs counts them on x86-64 (USER_HZ).
const TICKS: u64 = 100;

/// Returns the seconds of processor time of this process, in user mode and in the kernel, as
/// getrusage(2) counts them (proc_pid_stat(5), fields 14 and 15).
fn processor_time() -> Option<[String; 2]> {
    // The file is read on an ordinary thread: the kernel adds up all threads meanwhile.
    let stat = tailwater::blocking(|| std::fs::read_to_string("/proc/self/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let mut ticks = fields.split_whitespace().skip(11).map(str::parse::<u64>);
    let mut seconds = || {
        let ticks = ticks.next()?.ok()?;
        Some(format!("{}.{:06}", ticks / TICKS, ticks % TICKS * 1_000_000 / TICKS))
    };
    Some([seconds()?, seconds()?])
}

fn settings(service: &Service, take: &mut dyn FnMut(&str, &str)) {
    let (settings, config) = (&service.settings, service.store.config());
    let on = |on: bool| if on { "on" } else { "off" };
    let yes = |yes: bool| if yes { "yes" } else { "no" };
    take("maxbytes", &service.store.limit().to_string());
    take("maxconns", &settings.max_connections.to_string());
    take("tcpport", &settings.tcp_port.to_string());
    take("udpport", &settings.udp_port.to_string());
    take("inter", &settings.listen);
    take("verbosity", &service.verbosity.load(Relaxed).to_string());
    take("evictions", on(config.evict));
    take("domain_socket", "NULL");
    take("shutdown_command", "no");
    take("chunk_size", &CELL_BYTES.to_string());
    take("num_threads", &settings.threads.to_string());
    take("detail_enabled", "no");
    take("cas_enabled", "yes");
    take("binding_protocol", "auto-negotiate");
    take("auth_enabled_sasl", "no");
    take("auth_enabled_ascii", "no");
    take("item_size_max", &config.max_item.to_string());
    take("maxconns_fast", "yes");
    take("lru_crawler", "yes");
    take("flush_enabled", yes(settings.flush));
    take("dump_enabled", "yes");
    take("hash_algorithm", "siphash13");
    take("lru_segmented", "yes");
    take("idle_timeout", &settings.idle_timeout.to_string());
}

fn items(service: &Service, now: Now, take: &mut dyn FnMut(&str, &str)) {
    let totals = service.store.totals(now);
    if totals.items == 0 {
        return;
    }
    let counters = &totals.counters;
    let numbers = [
        ("number", totals.items),
        ("number_warm", totals.protected),
        ("number_cold", totals.items - totals.protected.min(totals.items)),
        ("age_warm", totals.protected_age.into()),
        ("age", totals.age.into()),
        ("mem_requested", totals.bytes),
        ("evicted", counters.evictions),
        ("evicted_nonzero", counters.evicted_nonzero),
        ("evicted_time", counters.evicted_time),
        ("outofmemory", counters.out_of_memory),
        ("reclaimed", counters.reclaimed),
        ("expired_unfetched", counters.expired_unfetched),
        ("evicted_unfetched", counters.evicted_unfetched),
        ("evicted_active", counters.evicted_active),
        ("crawler_reclaimed", counters.crawler_reclaimed),
        ("crawler_items_checked", counters.crawler_items_checked),
        ("moves_to_warm", counters.promoted),
    ];
    for (name, value) in numbers {
        take(&format!("items:1:{name}"), &value.to_string());
    }
}

fn slabs(service: &Service, now: Now, take: &mut dyn FnMut(&str, &str)) {
    let totals = service.store.totals(now);
    let Totals { counters, cells, free_cells, pinned_cells, .. } = &totals;
    let numbers = [
        ("chunk_size", CELL_BYTES as u64),
        ("chunks_per_page", *cells),
        ("total_pages", 1),
        ("total_chunks", *cells),
        ("used_chunks", cells.saturating_sub(*free_cells)),
        ("free_chunks_end", 0),
        ("mem_requested", totals.bytes),
        ("free_chunks", *free_cells),
        ("pinned_chunks", *pinned_cells),
        ("get_hits", counters.get_hits),
        ("cmd_set", counters.cmd_set),
        ("delete_hits", counters.delete_hits),
        ("incr_hits", counters.incr_hits),
        ("decr_hits", counters.decr_hits),
        ("cas_hits", counters.cas_hits),
        ("cas_badval", counters.cas_badval),
        ("touch_hits", counters.touch_hits),
    ];
    for (name, value) in numbers {
        take(&format!("1:{name}"), &value.to_string());
    }
    take("active_slabs", "1");
    take("total_malloced", &totals.memory.to_string());
}

/// Returns false if the store is not replicated: to memcached the group is unknown.
fn replication(service: &Service, take: &mut dyn FnMut(&str, &str)) -> bool {
    let Some(replication) = service.replication.get() else { return false };
    take("role", if replication.is_backup() { "backup" } else { "primary" });
    if replication.is_backup() {
        let copy = match replication.copy() {
            Copy::None => "none",
            Copy::Partial => "partial",
            Copy::Complete => "complete",
        };
        take("copy", copy);
    }
    for (number, (address, link, has)) in replication.backups().into_iter().enumerate() {
        let link = match link {
            Link::Lost => "lost",
            Link::Copying => "copying",
            Link::InStep => "in_step",
        };
        take(&format!("{number}:addr"), &address.to_string());
        take(&format!("{number}:state"), link);
        take(&format!("{number}:change"), &has.to_string());
    }
    true
}

/// Calls `take` for the statistics of these connections.
pub(super) fn connections(peers: &[(u64, Arc<Peer>)], now: Now, take: &mut dyn FnMut(&str, &str)) {
    for (number, peer) in peers {
        take(&format!("{number}:addr"), &format!("tcp:{}", peer.address));
        take(&format!("{number}:state"), "conn_read");
        let idle = now.seconds.saturating_sub(peer.last.load(Relaxed));
        take(&format!("{number}:secs_since_last_cmd"), &idle.to_string());
    }
}
