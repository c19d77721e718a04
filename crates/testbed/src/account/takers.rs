//! Which threads that are no kthreads ran on the managed cores between two looks.
//!
//! Owns their sums by process and core: how long they ran, and for how much of that a kthread
//! waited for the core. What is compared comes from the tracepoints; where these are refused there
//! are no names, and the refusal is passed on. Names are those that programs gave themselves, made
//! harmless for a terminal, also in documents.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use tailwater_bpf::core_time::Stranger;

use crate::table::Table;
use crate::text::plain;

/// Rows of a table: a machine where more processes matter on lent cores is shared for good.
const MOST_ROWS: usize = 12;

/// The threads that ran since a watch began, or why that is unknown.
pub type Strangers = Result<Vec<Stranger>, Arc<str>>;

/// One process on one core between two looks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Taker {
    /// Name of the thread that ran longest.
    pub command: String,
    /// The process; of a thread of the kernel, the thread; 0 for threads that are not told apart.
    pub pid: u32,
    /// Whether it is a thread of the kernel.
    pub is_kernel: bool,
    /// Its control group; none if it had ended before it was looked up.
    pub control_group: Option<String>,
    /// The core.
    pub core: u16,
    /// Nanoseconds that it ran.
    pub ran_ns: u64,
    /// Nanoseconds of these in which a kthread waited for the core.
    pub waited_ns: u64,
}

impl Taker {
    /// Returns the name with the process number, if there is one process.
    #[must_use]
    pub fn name(&self) -> String {
        match (self.pid, self.is_kernel) {
            (0, _) => self.command.clone(),
            (pid, false) => format!("{}[{pid}]", self.command),
            (pid, true) => format!("{}[{pid}] of the kernel", self.command),
        }
    }

    /// Returns the control group, or a dash.
    #[must_use]
    pub fn group(&self) -> String {
        self.control_group.clone().unwrap_or_else(|| "-".to_owned())
    }
}

/// Returns who ran between two looks, those first for which kthreads waited longest; of one program
/// if its kthreads are given: only what ran while one of them waited.
///
/// # Errors
/// Why it is unknown.
pub fn takers(from: &Strangers, to: &Strangers, of: Option<&[i32]>) -> Result<Vec<Taker>, Arc<str>> {
    let (from, to) = (from.as_ref().map_err(Arc::clone)?, to.as_ref().map_err(Arc::clone)?);
    let key = |it: &Stranger| (it.core, it.tid, it.waiter);
    let before: BTreeMap<_, u64> = from.iter().map(|it| (key(it), it.ns)).collect();
    let is_wanted =
        |it: &&Stranger| of.is_none_or(|of| it.waiter.is_some_and(|tid| of.contains(&tid.cast_signed())));
    // By process and core, with the time of the thread whose name it has so far.
    let mut found: BTreeMap<(u32, u16), (Taker, u64)> = BTreeMap::new();
    for stranger in to.iter().filter(is_wanted) {
        let ran_ns = stranger.ns.saturating_sub(before.get(&key(stranger)).copied().unwrap_or(0));
        if ran_ns == 0 {
            continue;
        }
        let (taker, longest) = found.entry((stranger.pid, stranger.core)).or_insert_with(|| {
            let taker = Taker {
                command: plain(&stranger.command),
                pid: stranger.pid,
                is_kernel: stranger.is_kernel,
                control_group: stranger.group.as_deref().map(plain),
                core: stranger.core,
                ran_ns: 0,
                waited_ns: 0,
            };
            (taker, ran_ns)
        });
        taker.ran_ns += ran_ns;
        taker.waited_ns += if stranger.waiter.is_some() { ran_ns } else { 0 };
        if ran_ns > *longest {
            (taker.command, *longest) = (plain(&stranger.command), ran_ns);
        }
    }
    let mut takers: Vec<Taker> = found.into_values().map(|(taker, _)| taker).collect();
    takers.sort_by_key(|taker| std::cmp::Reverse((taker.waited_ns, taker.ran_ns)));
    Ok(takers)
}

/// Returns a table of who ran on the managed cores in `seconds`; one line if that is unknown or
/// nothing did.
#[must_use]
pub fn takers_table(takers: &Result<Vec<Taker>, Arc<str>>, seconds: f64) -> String {
    let takers = match takers {
        Err(why) => return format!("who ran on lent cores is not known: {why}\n"),
        Ok(takers) if takers.is_empty() => return "no other thread ran on these cores\n".to_owned(),
        Ok(takers) => takers,
    };
    let mut table =
        Table::new("ran on lent cores | control group | core | % of it | % while a kthread waited");
    let percent = |ns: u64| format!("{:.1}", ns as f64 / seconds.max(1e-9) / 1e7);
    for taker in takers.iter().take(MOST_ROWS) {
        let Taker { core, ran_ns, waited_ns, .. } = *taker;
        table.row([taker.name(), taker.group(), core.to_string(), percent(ran_ns), percent(waited_ns)]);
    }
    let left = takers.len().saturating_sub(MOST_ROWS);
    if left > 0 { format!("{table}and {left} more\n") } else { table.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stranger(tid: u32, waiter: Option<u32>, ns: u64) -> Stranger {
        Stranger {
            core: 1,
            pid: 70,
            tid,
            command: format!("xz{tid}\x1b[2J"),
            is_kernel: false,
            group: Some("/batch\n".into()),
            waiter,
            ns,
        }
    }

    #[test]
    fn a_process_is_one_row_with_the_name_of_its_busiest_thread() {
        let from = Ok(vec![stranger(71, None, 500), stranger(71, Some(9), 100)]);
        let to = Ok(vec![
            stranger(71, None, 500),
            stranger(71, Some(9), 400),
            stranger(72, Some(8), 1_000),
            Stranger { pid: 3, tid: 3, is_kernel: true, group: None, ..stranger(3, None, 50_000) },
        ]);
        let all = takers(&from, &to, None).unwrap();
        assert_eq!(
            all.iter().map(|it| (it.pid, it.ran_ns, it.waited_ns)).collect::<Vec<_>>(),
            [(70, 1_300, 1_300), (3, 50_000, 0)]
        );
        assert_eq!((all[0].name().as_str(), all[0].group().as_str()), ("xz72?[2J[70]", "/batch?"));
        assert_eq!((all[1].name().as_str(), all[1].group().as_str()), ("xz3?[2J[3] of the kernel", "-"));
        assert_eq!((all[0].command.as_str(), all[0].control_group.as_deref()), ("xz72?[2J", Some("/batch?")));
        let of_one = takers(&from, &to, Some(&[9])).unwrap();
        assert_eq!((of_one.len(), of_one[0].waited_ns), (1, 300));
        let text = takers_table(&Ok(all), 1e-5);
        assert!(text.contains("xz72?[2J[70]") && text.contains(" 13.0"), "{text}");
        assert!(!text.contains('\x1b'), "{text}");
    }

    #[test]
    fn what_is_unknown_or_nothing_is_one_line() {
        let refused: Strangers = Err("needs CAP_BPF".into());
        assert!(takers_table(&takers(&refused, &Ok(vec![]), None), 1.0).contains("not known: needs CAP_BPF"));
        assert_eq!(takers_table(&takers(&Ok(vec![]), &Ok(vec![]), None), 1.0).lines().count(), 1);
        let untold = Stranger { pid: 0, tid: 0, ..stranger(0, Some(0), 7) };
        let all = takers(&Ok(vec![]), &Ok(vec![untold.clone()]), None).unwrap();
        assert_eq!((all[0].name().as_str(), all[0].waited_ns), ("xz0?[2J", 7));
        assert_eq!(takers(&Ok(vec![]), &Ok(vec![untold]), Some(&[9])), Ok(vec![]));
        let many = Ok((1..51).map(|pid| Stranger { pid, ..stranger(pid, None, 5) }).collect());
        assert!(takers_table(&takers(&Ok(vec![]), &many, None), 1.0).ends_with("and 38 more\n"));
    }
}
