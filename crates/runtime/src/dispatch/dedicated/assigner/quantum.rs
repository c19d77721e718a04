//! Decides when a request gives way to others: its quantum is over, or the policy demands it.
//!
//! Decides from what lanes show and what waits, and orders it through the lane's mailbox; the
//! request's thread then calls [`Assigner::preempt`]. Hands nothing out and takes nothing back.

use super::super::super::table::Number;
use super::Assigner;
use tailwater_sched::Nanos;
use tailwater_sched::dispatch::QuantumDecision;

impl<P, S> Assigner<P, S> {
    /// The request that `lane` runs does not give way, for lack of room: for another quantum, and
    /// if the policy has demanded it, until [there is room](Self::order_again).
    pub fn run_on(&mut self, index: usize, now: Nanos) {
        let lane = &mut self.lanes[index];
        if let Some(first) = lane.given.front_mut() {
            first.refused |= core::mem::take(&mut first.stops);
            lane.ask_at = self.quantum.map_or(Nanos(u64::MAX), |quantum| now + quantum);
            lane.update_order();
        }
    }

    /// Has the request that a lane runs give way, if the policy has demanded that when there was no
    /// room, and there is now: policies demand it once.
    pub(super) fn order_again(&mut self, index: usize) {
        let lane = &mut self.lanes[index];
        if let Some(first) = lane.given.front_mut()
            && first.refused
            && self.table.may_preempt(first.number)
        {
            (first.refused, first.stops) = (false, true);
            lane.update_order();
        }
    }

    /// Returns whether a request waits that the policy has handed out, behind the one that `lane`
    /// runs or for any lane.
    fn waits_behind(&self, lane: usize) -> bool {
        self.lanes[lane].waiting() > 0 || !self.returned.is_empty()
    }

    /// Returns whether a request gives way that has used up its quantum, where there is room for
    /// it: as the dispatcher's thread decides for the one that `lane` runs.
    pub fn ask_policy(&mut self, lane: Option<usize>, number: Number, now: Nanos) -> QuantumDecision {
        if let Some(index) = lane {
            self.order_again(index);
            let first = self.lanes[index].given.front();
            let stops = first.is_some_and(|first| first.number == number && first.stops);
            if stops || self.quantum.is_some() && self.waits_behind(index) {
                return QuantumDecision::Preempt;
            }
        }
        self.table.quantum(number, now)
    }

    /// Has the request that a lane runs give way, if its quantum is over and another one waits
    /// [behind it](Self::waits_behind), or the policy says so.
    pub(super) fn watch_quantum(&mut self, index: usize, now: Nanos) {
        let Some(quantum) = self.quantum else { return };
        let lane = &self.lanes[index];
        // Of one look: the lane may take its next request meanwhile, which has just begun then.
        let ((taken, began), first) = (lane.mailbox.progress(), lane.given[0]);
        let has_run_long = taken != lane.left && now.since(Nanos(began)) >= quantum;
        // The policy let it run on without end, and does not know what was taken back since.
        let asks = now >= lane.ask_at || lane.ask_at == Nanos(u64::MAX) && !self.returned.is_empty();
        if !has_run_long || first.stops || !asks {
            return;
        }
        let decision = match () {
            () if !self.table.may_preempt(first.number) => QuantumDecision::Again(quantum),
            () if self.waits_behind(index) => QuantumDecision::Preempt,
            () => self.table.quantum(first.number, now),
        };
        let lane = &mut self.lanes[index];
        match decision {
            QuantumDecision::Preempt => {
                lane.given[0].stops = true;
                lane.update_order();
            }
            QuantumDecision::Again(after) => lane.ask_at = now + after,
            QuantumDecision::RunOn => lane.ask_at = Nanos(u64::MAX),
        }
    }
}
