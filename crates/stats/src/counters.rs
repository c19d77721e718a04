//! The counters of the switch, of cores, of the polling loop, of a program, and of the firewall.
//!
//! Each struct is an object of the document; what is said of a counter here is its help in metrics
//! and in the book. The polling thread writes them, and the control thread those of registrations.

use crate::counter::counters;

counters! {
    /// Counters of the switch.
    SwitchCounters {
        /// Frames taken from egress rings.
        from_runtimes,
        /// Frames injected by ports.
        from_ports,
        /// Copies put into ingress rings.
        delivered,
        /// Acknowledgments put into a ring without waking their program, because no thread waits
        /// for them.
        held_acks,
        /// Flow groups whose next frame went to another kthread than the previous one.
        moved_groups,
        /// Moved flow groups whose earlier frames still waited, and are read first.
        fenced_groups,
        /// Frames handed to ports.
        to_ports,
        /// Broadcast and multicast frames.
        flooded,
        /// Dropped: the receiver's ingress ring was full, or held the sender's share; or was half
        /// full, of frames to a group.
        dropped_full,
        /// Answers to frames for addresses without a program.
        answered_absent,
        /// Answers for addresses without a program that were not sent, because the program or port
        /// has been sent too many.
        absent_limited,
        /// Reports to programs that the program at another address has ended.
        departures,
        /// Dropped: no runtime or port has the destination address, and there is no uplink.
        dropped_unknown,
        /// Dropped: source MAC, source IP, ARP sender, or advertised or probed address was not the
        /// runtime's own.
        dropped_spoofed,
        /// Dropped: a frame from a port claimed to be of a program of this machine.
        dropped_foreign,
        /// Dropped: truncated, or lengths that contradict one another.
        dropped_malformed,
        /// Dropped: neither IPv4, IPv6 nor ARP, nor a configured EtherType.
        dropped_ethertype,
        /// Dropped: a runtime sent a VLAN tag.
        dropped_tagged,
        /// Dropped: a runtime sent a message of routers (advertisement, redirect, query), a source
        /// route, neighbour discovery in fragments or with a hop limit other than 255, or ARP that
        /// is neither request nor reply.
        dropped_refused,
        /// Dropped: a firewall rule, or the firewall's default, denied it.
        dropped_denied,
        /// Dropped: over a rate limit.
        dropped_limited,
        /// Dropped: broadcast and multicast frames of runtimes that caused too many copies.
        dropped_broadcast,
        /// Dropped: the sender changed the frame while it was copied to a port.
        dropped_torn,
        /// Dropped: the port refused it, or it was longer than the network's packets may be.
        dropped_port,
    }
}

counters! {
    /// Counters of the allocator and of hand-offs.
    CoreCounters {
        /// Looks at all queues.
        ticks,
        /// Free cores lent.
        grants,
        /// Cores taken from a busy kthread.
        preemptions,
        /// Cores taken from an idle kthread.
        idle_takes,
        /// Decisions dropped because the idle victim found work first.
        idle_lost,
        /// Cores that a kthread gave up without being asked.
        parks,
        /// Affinity changes before a grant.
        rebinds,
        /// Affinity changes the kernel refused.
        rebind_failures,
        /// Managed cores that Linux does not let the IOKernel use at present.
        absent: Gauge,
        /// Step of the policy, from 0; only policies with steps change it.
        step: Gauge,
        /// Cores of that step.
        in_use: Gauge,
        /// Cores that ordinary threads are kept off at present.
        reserved: Gauge,
        /// Preempt signals sent.
        signals,
        /// Threads moved off their core because they did not cede.
        evictions,
        /// Cores taken back because the kthread never started.
        no_starts,
        /// Transitions the ledger refused: defects of the IOKernel, never of a runtime.
        ledger_refusals,
        /// Wakes repeated because a kthread that was lent a core had not started.
        rewakes,
        /// Cores ceded by a kthread that promised to wake the next owner at the board.
        board_wakes,
        /// Cores ceded with such a promise whose next owner did not start in time.
        late_board_wakes,
    }
}

counters! {
    /// Counters of the polling loop and the control thread.
    LoopCounters {
        /// Iterations of the polling loop.
        iterations,
        /// Times the polling thread went to sleep.
        sleeps,
        /// Time for which the polling thread slept.
        slept_ns,
        /// Sleeps that a program's doorbell ended.
        rung,
        /// Times other programs began to compete for the cores, with `neighbour-share` above 0.
        contests,
        /// Time for which other programs have competed for the cores, without the contest that goes
        /// on.
        contested_ns,
        /// Times that a batch job which Linux runs was noticed on the lent cores.
        batch_jobs,
        /// Slices of its core that the polling thread left to ordinary threads.
        slices,
        /// Time of the slices of its core that the polling thread left to ordinary threads.
        sliced_ns,
        /// Times the polling thread let threads of this machine run that may be the peer of a port.
        yields,
        /// Time in calls that let threads run which may be the peer of a port.
        yielded_ns,
        /// Calls that let such threads run and lasted over 1 ms: another thread computed, or the
        /// machine stood still.
        long_yields,
        /// Time for which no such call was made, after one that was long.
        withheld_ns,
        /// Runtimes registered.
        registered,
        /// Processor time in which the polling thread attached programs and ended registrations.
        registration_ns,
        /// Registrations refused.
        refused,
        /// Registrations ended by the runtime: exit, crash or close.
        departed,
        /// Registrations ended by the IOKernel because of what the runtime did.
        expelled,
        /// Times the polling thread ended no iteration for 100 ms although it ran, or waited in the
        /// kernel. Should be 0.
        stalls,
        /// Times Linux did not let the polling thread run for 100 ms.
        starvations,
    }
}

counters! {
    /// Counters of one runtime.
    RuntimeCounters {
        /// Wakes that its kthreads were sent again and again and did not get, as they report; none
        /// is known to be possible.
        lost_wakes,
        /// Frames put into its ingress rings.
        rx_frames,
        /// Bytes of the frames put into its ingress rings.
        rx_bytes,
        /// Frames dropped because an ingress ring was full, or held the sender's share; or was half
        /// full, of frames to a group.
        rx_full,
        /// Frames taken from its egress rings.
        tx_frames,
        /// Bytes of the frames taken from its egress rings.
        tx_bytes,
        /// Its frames dropped because a source address was not its own.
        tx_spoofed,
        /// Its frames dropped because they were malformed.
        tx_malformed,
        /// Its frames dropped because no runtime may send their kind: other EtherTypes, VLAN tags,
        /// messages of routers.
        tx_refused,
        /// Its frames dropped by a firewall rule or the default.
        tx_denied,
        /// Its frames dropped because they were over its rate limit.
        tx_limited,
        /// Its broadcast and multicast frames dropped because it caused too many copies.
        tx_broadcast,
        /// Frames for it dropped by a firewall rule or the default.
        rx_denied,
        /// Frames for it dropped because they were over its rate limit.
        rx_limited,
        /// Cores it holds now.
        cores: Gauge,
        /// Cores that it requested and owns now.
        granted_cores: Gauge,
        /// Requests for cores that were cut because they exceeded what it may own.
        cut_requests,
        /// Times it was lent a core.
        grants,
        /// Times a busy core was taken from it.
        preempted,
        /// Times one of its threads was moved off the managed cores, because it did not cede.
        evictions,
        /// Doorbells that ended a sleep of the polling thread for nothing.
        vain_rings,
        /// Cores that it asked for and gave up without having done anything.
        vain_cores,
        /// Time charged to its tenant for cores: for which services waited until it, if
        /// best-effort, started or ceded, or that it ran beside them; for which services of other
        /// tenants waited until it, if a service, had started or ceded; and of cores that it did
        /// not use.
        late_ns,
        /// Time of the polling thread that was charged to it: for refused frames, and for needless
        /// doorbells and cores.
        offence_ns,
        /// Times its tenant was not served for a while, because it had not paid for the polling
        /// thread's time.
        throttled,
        /// Core time it had, up to the last time a core changed hands.
        core_ns,
    }
}

counters! {
    /// Packets that no rule of the firewall decided.
    FirewallCounters {
        /// Denied because no rule matched and the default of their direction is to deny.
        denied_by_default,
        /// Denied because they could not be parsed: not IP, malformed, or fragments that hide their
        /// upper-layer header.
        opaque,
    }
}
