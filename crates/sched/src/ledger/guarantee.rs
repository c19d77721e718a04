//! Guaranteed cores while some cores are absent.
//!
//! Owns the division of too few cores among guarantees. It is even: each runtime is guaranteed its
//! registered number or the *level*, whichever is less, and the level is the highest that fits the
//! cores that are present. Cores that no level divides are guaranteed to none: policies lend them
//! by load, in turns among runtimes of one class, and to `LatencyCritical` ones first. With fewer
//! cores than runtimes with a guarantee the level is 0, and a `BestEffort` one among them may
//! starve.

use super::Ledger;
use crate::ids::RuntimeId;

impl Ledger {
    /// Changes the number of cores that a runtime is guaranteed. Returns false, and changes
    /// nothing, for an unknown runtime, and where the number exceeds what it may have or what is
    /// left.
    pub fn set_guaranteed(&mut self, runtime: RuntimeId, guaranteed: u16) -> bool {
        let (all, managed) = (self.guaranteed, self.cores.len());
        let Some(account) = self.slots.get_mut(runtime.0 as usize).and_then(Option::as_mut) else {
            return false;
        };
        let all = all - usize::from(account.spec.guaranteed) + usize::from(guaranteed);
        if guaranteed > account.spec.max || all > managed {
            return false;
        }
        account.spec.guaranteed = guaranteed;
        self.guaranteed = all;
        self.divide_guarantees();
        true
    }

    /// Sets what each runtime is guaranteed. Called when a core leaves or returns, and when a
    /// runtime joins or leaves.
    pub(super) fn divide_guarantees(&mut self) {
        let level = self.guarantee_level();
        for account in self.slots.iter_mut().flatten() {
            account.guaranteed = account.spec.guaranteed.min(level);
        }
    }

    /// Returns the highest level that fits.
    pub(super) fn guarantee_level(&self) -> u16 {
        if self.guaranteed <= self.present {
            return u16::MAX;
        }
        let (mut fits, mut exceeds) = (0, u16::MAX);
        while exceeds - fits > 1 {
            let level = fits + (exceeds - fits) / 2;
            let accounts = self.slots.iter().flatten();
            let needed: usize = accounts.map(|account| usize::from(account.spec.guaranteed.min(level))).sum();
            *(if needed <= self.present { &mut fits } else { &mut exceeds }) = level;
        }
        fits
    }
}
