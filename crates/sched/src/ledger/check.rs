//! The ledger's check of itself: every invariant of the module header, recounted from scratch.

use super::{CoreState, Inconsistency, KthreadState, Ledger};
use crate::ids::{CoreId, KthreadId, RuntimeId};
use heap::vec;

impl Ledger {
    /// Verifies every invariant of the [module](super). For tests and the simulator, after every
    /// step; O(cores + kthreads).
    ///
    /// # Errors
    /// The first [`Inconsistency`] found. It is a defect of the ledger; no operation can cause one.
    pub fn check(&self) -> Result<(), Inconsistency> {
        self.check_live_list()?;
        for (core, &state) in self.topology.cores().iter().zip(&self.cores) {
            self.check_core(core.id, state)?;
        }
        for &runtime in &self.live {
            self.check_runtime(runtime)?;
        }
        let free = self.cores.iter().filter(|state| **state == CoreState::Free).count();
        equal("free", self.free, free)?;
        let present = self.cores.iter().filter(|state| **state != CoreState::Absent).count();
        equal("present", self.present, present)?;
        let accounts = self.slots.iter().flatten();
        let guaranteed = accounts.map(|account| usize::from(account.spec.guaranteed)).sum();
        equal("guaranteed", self.guaranteed, guaranteed)?;
        equal("guaranteed within managed", guaranteed.min(self.cores.len()), guaranteed)?;
        let accounts = self.slots.iter().flatten();
        let at_present = accounts.map(|account| usize::from(account.guaranteed)).sum();
        equal("guaranteed within present", present.min(at_present), at_present)
    }

    fn check_live_list(&self) -> Result<(), Inconsistency> {
        let slots = (0u32..).zip(&self.slots).filter(|(_, account)| account.is_some());
        let mut listed = self.live.iter();
        for (slot, _) in slots {
            if listed.next() != Some(&RuntimeId(slot)) {
                return Err(Inconsistency::LiveList(RuntimeId(slot)));
            }
        }
        listed.next().map_or(Ok(()), |extra| Err(Inconsistency::LiveList(*extra)))
    }

    fn check_core(&self, core: CoreId, state: CoreState) -> Result<(), Inconsistency> {
        let named = |kthread: KthreadId, expected: KthreadState| {
            let held = self.kthread(kthread);
            if held == Some(expected) {
                return Ok(());
            }
            Err(Inconsistency::CoreWithoutKthread { core, state, kthread, held })
        };
        match state {
            CoreState::Free | CoreState::Absent => Ok(()),
            CoreState::Owned { kthread, .. } => named(kthread, KthreadState::Granted { core }),
            CoreState::Moving { from, to, .. } => {
                named(from, KthreadState::Granted { core })?;
                named(to, KthreadState::Incoming { core })
            }
        }
    }

    fn check_runtime(&self, runtime: RuntimeId) -> Result<(), Inconsistency> {
        let account = self.account(runtime).ok_or(Inconsistency::LiveList(runtime))?;
        let (mut granted, mut leaving, mut arriving) = (0, 0, 0);
        let mut evicted = vec![0; self.cores.len()];
        for (index, state) in (0u16..).zip(account.kthreads()) {
            let kthread = KthreadId::new(runtime, index);
            let (KthreadState::Granted { core } | KthreadState::Incoming { core }) = state else {
                if matches!(state, KthreadState::Evicted { .. }) {
                    // The ledger keeps the core from which it was evicted as its last.
                    let from = self.last_core(kthread).and_then(|core| self.topology.position(core));
                    let nowhere = Inconsistency::KthreadWithoutCore { kthread, state, core_state: None };
                    let from = from.ok_or(nowhere)?;
                    evicted[from] += 1;
                }
                continue;
            };
            let core_state = self.core(core);
            match (state, core_state) {
                (KthreadState::Granted { .. }, Some(CoreState::Owned { kthread: owner, .. }))
                    if owner == kthread =>
                {
                    granted += 1;
                }
                (KthreadState::Granted { .. }, Some(CoreState::Moving { from, .. })) if from == kthread => {
                    granted += 1;
                    leaving += 1;
                }
                (KthreadState::Incoming { .. }, Some(CoreState::Moving { from, to, .. }))
                    if to == kthread && from.runtime != runtime =>
                {
                    arriving += 1;
                }
                _ => return Err(Inconsistency::KthreadWithoutCore { kthread, state, core_state }),
            }
        }
        equal("granted", usize::from(account.granted), granted)?;
        equal("leaving", usize::from(account.leaving), leaving)?;
        equal("arriving", usize::from(account.arriving), arriving)?;
        equal("evicted", usize::from(account.evicted), evicted.iter().sum())?;
        equal("cores of evicted", account.evicted_from.len(), evicted.len())?;
        let withheld = evicted.iter().filter(|&&evicted| evicted >= usize::from(account.most_evicted));
        equal("withheld", account.withheld.into(), withheld.count())?;
        for (&kept, counted) in account.evicted_from.iter().zip(evicted) {
            equal("evicted from a core", kept.into(), counted)?;
        }
        let guaranteed = account.spec.guaranteed.min(self.guarantee_level());
        equal("guaranteed at present", usize::from(account.guaranteed), usize::from(guaranteed))?;
        equal("kthreads", usize::from(account.spec.kthreads), account.kthreads.len())?;
        let (held, max) = (account.held(), account.spec.max);
        if held > max {
            return Err(Inconsistency::OverLimit { runtime, held, max });
        }
        Ok(())
    }
}

fn equal(counter: &'static str, kept: usize, counted: usize) -> Result<(), Inconsistency> {
    if kept == counted { Ok(()) } else { Err(Inconsistency::Counter { counter, kept, counted }) }
}
