//! Losses, and unnecessary repairs.

use super::*;
use crate::sender::recovery::Frto;
use alloc::vec;
use alloc::vec::Vec;

#[test]
fn three_segments_beyond_a_hole_mean_loss_where_nothing_was_ever_reordered() {
    // RFC 8985 section 6.2 step 4.
    let mut bed = Bed::new(Algorithm::NewReno, true, false);
    bed.fill();
    bed.wait(ms(100));
    for last in 2..=3 {
        let acked = bed.sack(0, &[(1, last)]);
        assert_eq!((acked.lost, acked.in_recovery), (0, false));
        assert_eq!(bed.sender.may_send_new(bed.now), (last - 1) * MSS, "limited transmit (RFC 3042)");
    }
    let acked = bed.sack(0, &[(1, 4)]);
    assert_eq!((acked.lost, acked.in_recovery), (MSS, true));
    assert_eq!(bed.resend(), [0]);
    assert_eq!(bed.sender.ssthresh(), 5 * MSS);
    let acked = bed.wait(ms(100)).ack(10);
    assert!(acked.all_acked && !acked.in_recovery);
    assert_eq!(bed.sender.cwnd(), 5 * MSS);
}

#[test]
fn one_segment_beyond_a_hole_means_loss_after_a_quarter_of_a_round_trip() {
    let mut bed = Bed::new(Algorithm::NewReno, true, false);
    bed.send(2).wait(ms(100));
    assert_eq!(bed.sack(0, &[(1, 2)]).lost, 0);
    assert!(bed.until_timeout() > ms(24) && bed.until_timeout() < ms(26), "{:?}", bed.until_timeout());
    assert_eq!(bed.expire(), Timeout::Reordering { lost: MSS });
    assert_eq!(bed.resend(), [0]);
}

#[test]
fn reordering_once_seen_gives_time_to_later_segments() {
    let mut bed = Bed::new(Algorithm::NewReno, true, false);
    bed.send(4).wait(ms(100));
    bed.sack(0, &[(1, 2)]);
    assert_eq!(bed.ack(2).lost, 0, "the original came late");
    bed.wait(ms(1)).ack(4);
    bed.fill();
    bed.wait(ms(100));
    let acked = bed.sack(4, &[(5, 9)]);
    assert_eq!((acked.lost, acked.in_recovery), (0, false), "four beyond the hole, and it may still come");
    assert_eq!(bed.expire(), Timeout::Reordering { lost: MSS });
}

#[test]
fn a_d_sack_widens_the_reordering_window() {
    let mut bed = Bed::new(Algorithm::NewReno, true, false);
    bed.send(2).wait(ms(100));
    bed.sack(0, &[(1, 2)]);
    bed.expire();
    assert_eq!(bed.resend(), [0]);
    bed.wait(ms(5));
    bed.ack(2);
    let around = bed.sender.circumstances();
    let before = bed.sender.rack.window(&bed.sender.board, &around);
    bed.sack(2, &[(0, 1)]);
    assert_eq!(bed.sender.rack.window(&bed.sender.board, &around), before * 2);
}

#[test]
fn a_lost_retransmission_is_found_by_time() {
    let mut bed = Bed::new(Algorithm::NewReno, true, false);
    bed.fill();
    bed.wait(ms(100));
    bed.sack(0, &[(1, 10)]);
    assert_eq!(bed.resend(), [0]);
    assert!(bed.fill() > 0, "the window admits new data");
    bed.wait(ms(100));
    let acked = bed.sack(0, &[(1, 12)]);
    assert_eq!(acked.lost, MSS, "the second copy too");
    assert_eq!(bed.resend(), [0]);
}

#[test]
fn the_rate_comes_down_in_proportion() {
    // RFC 6937: of ten segments in flight, half as many are sent while the others arrive.
    let mut bed = Bed::new(Algorithm::NewReno, true, false);
    bed.sender.congestion.cwnd = 20 * MSS;
    bed.fill();
    bed.wait(ms(100));
    let mut out = 0;
    for last in 2..=20 {
        bed.sack(0, &[(1, last)]);
        out += bed.resend().len() as u32;
        if bed.sender.in_recovery() {
            out += bed.fill();
        }
        assert!(bed.sender.in_flight() <= 20 * MSS);
    }
    assert_eq!(bed.sender.ssthresh(), 10 * MSS);
    assert!((9..=11).contains(&out), "{out}");
    bed.wait(ms(100)).ack(20);
    assert_eq!(bed.sender.cwnd(), 10 * MSS);
}

#[test]
fn below_the_threshold_an_ack_releases_what_it_delivers_and_one_segment_more_if_it_advances() {
    // RFC 6937 section 3 permits the segment more for every acknowledgement. RFC 9937, which
    // obsoletes it, does so for a safe one only, which advances and shows no further loss: a SACK
    // alone releases as much as it delivers.
    let mut bed = Bed::new(Algorithm::NewReno, true, false);
    bed.sender.congestion.cwnd = 20 * MSS;
    bed.fill();
    bed.wait(ms(100));
    // Segments 0 to 13 are lost, which the third SACK shows.
    bed.sack(0, &[(14, 15)]);
    bed.sack(0, &[(14, 16)]);
    let mut released = Vec::new();
    for last in 17..=20 {
        bed.sack(0, &[(14, last)]);
        assert!(bed.sender.in_flight() < bed.sender.ssthresh());
        released.push(bed.resend().len());
    }
    assert_eq!((bed.sender.ssthresh(), released), (10 * MSS, vec![1; 4]));
    bed.wait(ms(100));
    let mut released = Vec::new();
    for first in 1..=5 {
        bed.sack(first, &[(14, 20)]);
        assert!(bed.sender.in_flight() < bed.sender.ssthresh());
        released.push(bed.resend().len());
    }
    assert_eq!(released, [2; 5]);
    assert_eq!(bed.sender.in_flight(), 9 * MSS);
}

#[test]
fn without_sack_the_third_duplicate_sends_again_and_partial_acks_the_next_hole() {
    // RFC 5681 section 3.2, RFC 6582 section 3.2.
    let mut bed = Bed::new(Algorithm::NewReno, false, false);
    bed.fill();
    bed.wait(ms(100));
    bed.ack(1);
    for duplicate in 1..=2 {
        bed.ack(1);
        assert!(bed.resend().is_empty());
        assert!(bed.sender.may_send_new(bed.now) >= duplicate * MSS, "limited transmit (RFC 3042)");
    }
    assert!(bed.ack(1).in_recovery);
    assert_eq!(bed.resend(), [1]);
    bed.ack(1);
    assert!(bed.resend().is_empty());
    bed.wait(ms(100));
    assert!(bed.ack(5).in_recovery, "segment 5 is missing too");
    assert_eq!(bed.resend(), [5]);
    bed.wait(ms(100));
    assert!(!bed.ack(10).in_recovery);
    assert!(bed.sender.cwnd() < 10 * MSS);
}

#[test]
fn duplicates_after_a_timeout_begin_no_second_recovery() {
    // RFC 6582 section 4.
    let mut bed = Bed::new(Algorithm::NewReno, false, false);
    bed.fill();
    bed.expire();
    bed.resend();
    bed.wait(ms(100));
    bed.ack(10);
    bed.send(4).wait(ms(10));
    for _ in 0..5 {
        assert!(!bed.ack(10).in_recovery, "una has not passed what was sent before the time-out");
    }
}

#[test]
fn a_timeout_sends_the_first_segment_and_slow_starts() {
    let mut bed = Bed::new(Algorithm::NewReno, false, false);
    bed.fill();
    assert_eq!(bed.expire(), Timeout::Retransmission { consecutive: 1 });
    assert_eq!((bed.sender.cwnd(), bed.sender.ssthresh(), bed.sender.in_flight()), (MSS, 5 * MSS, 0));
    assert_eq!(bed.resend(), [0]);
    let rto = bed.sender.rto();
    assert_eq!(bed.expire(), Timeout::Retransmission { consecutive: 2 });
    assert_eq!(bed.sender.rto(), rto * 2, "backed off");
    assert_eq!(bed.sender.ssthresh(), 5 * MSS, "held (RFC 5681 section 3.1)");
    assert_eq!(bed.resend(), [0]);
    bed.wait(ms(100)).ack(1);
    assert_eq!((bed.resend(), bed.sender.consecutive_timeouts()), (vec![1, 2], 0));
    bed.wait(ms(100)).ack(3);
    assert_eq!(bed.resend(), [3, 4, 5]);
}

#[test]
fn f_rto_undoes_a_timeout_that_only_a_delay_caused() {
    // RFC 5682 section 2.1, with and without SACK.
    for sack in [false, true] {
        let mut bed = Bed::new(Algorithm::NewReno, sack, false);
        bed.fill();
        while !matches!(bed.expire(), Timeout::Retransmission { .. }) {
            bed.resend();
        }
        let window = bed.sender.episode.as_ref().expect("repairs").phase;
        assert_eq!(window, Phase::Timeout(Frto::First));
        assert_eq!(bed.resend(), [0]);
        bed.wait(ms(1));
        assert!(!bed.ack(1).spurious);
        assert_eq!(bed.sender.next_retransmission(true), None, "new data first");
        assert_eq!(bed.sender.may_send_new(bed.now), 2 * MSS);
        bed.send(2);
        assert!(bed.ack(2).spurious, "never sent again, and acknowledged");
        assert_eq!(bed.sender.cwnd(), 11 * MSS, "as before, and grown by what was acknowledged");
        assert!(bed.resend().is_empty());
        assert_eq!(bed.sender.in_flight(), 10 * MSS);
    }
}

#[test]
fn f_rto_gives_way_to_a_duplicate() {
    let mut bed = Bed::new(Algorithm::NewReno, false, false);
    bed.fill();
    bed.expire();
    assert_eq!(bed.resend(), [0]);
    bed.wait(ms(100)).ack(1);
    bed.send(2).wait(ms(100));
    assert!(!bed.ack(1).spurious);
    bed.ack(1);
    assert_eq!(bed.resend(), [1], "what was lost, was lost");
}

#[test]
fn an_older_timestamp_proves_a_timeout_spurious_at_the_first_answer() {
    // RFC 3522 section 3.2.
    for (echo_original, spurious) in [(true, true), (false, false)] {
        let mut bed = Bed::new(Algorithm::Cubic, false, true);
        let original = bed.now;
        bed.fill();
        bed.expire();
        assert_eq!(bed.resend(), [0]);
        let again = bed.now;
        bed.wait(ms(100));
        let acked = bed.ack_with(at(1), &[], Some(if echo_original { original } else { again }));
        assert_eq!(acked.spurious, spurious);
        assert_eq!(bed.sender.cwnd() >= 10 * MSS, spurious);
        assert_eq!(bed.sender.ssthresh() == u32::MAX, spurious);
    }
}

#[test]
fn d_sacks_for_all_that_was_sent_again_restore_the_window() {
    let mut bed = Bed::new(Algorithm::Cubic, true, false);
    bed.fill();
    bed.wait(ms(100));
    bed.sack(0, &[(2, 10)]);
    assert_eq!(bed.resend(), [0, 1]);
    assert!(bed.sender.ssthresh() < 10 * MSS);
    bed.fill();
    bed.wait(ms(1));
    bed.ack(10);
    assert!(!bed.sack(10, &[(0, 1)]).spurious, "one of two");
    assert!(bed.sack(10, &[(1, 2)]).spurious);
    assert_eq!(bed.sender.ssthresh(), u32::MAX);
    assert!(bed.sender.cwnd() >= 10 * MSS);
}

#[test]
fn a_tail_loss_is_probed_before_the_timeout() {
    // RFC 8985 section 7: without new data the last segment is sent again; its SACK shows that the
    // rest is lost.
    let mut bed = Bed::new(Algorithm::NewReno, true, false);
    bed.send(4);
    assert_eq!(bed.until_timeout(), ms(200) - us(1), "two round trips");
    assert_eq!(bed.expire(), Timeout::Probe);
    assert_eq!(bed.sender.next_retransmission(true), None, "rather something new");
    assert!(bed.sender.may_send_new(bed.now) >= MSS);
    assert_eq!(bed.resend(), [3]);
    bed.wait(ms(100));
    bed.sack(1, &[(3, 4)]);
    bed.expire();
    assert_eq!(bed.resend(), [1]);
    bed.wait(ms(100)).ack(2);
    assert_eq!(bed.resend(), [2]);
    bed.wait(ms(100)).ack(4);
    assert!(bed.sender.cwnd() < 10 * MSS);
}

#[test]
fn a_probe_goes_out_beyond_the_window_and_only_once() {
    let mut bed = Bed::new(Algorithm::NewReno, true, false);
    bed.fill();
    assert_eq!(bed.sender.may_send_new(bed.now), 0);
    assert_eq!(bed.expire(), Timeout::Probe);
    assert_eq!(bed.sender.may_send_new(bed.now), MSS);
    bed.send(1);
    assert_eq!(bed.sender.may_send_new(bed.now), 0);
    assert_eq!(bed.expire(), Timeout::Retransmission { consecutive: 1 });
}

#[test]
fn a_probe_that_repaired_the_loss_costs_window_and_one_that_was_not_needed_does_not() {
    // RFC 8985 section 7.4.
    for needed in [true, false] {
        let mut bed = Bed::new(Algorithm::NewReno, true, false);
        bed.send(4);
        bed.wait(ms(100));
        if needed {
            bed.ack(3);
        }
        while bed.expire() != Timeout::Probe {}
        assert_eq!(bed.resend(), [3]);
        bed.wait(ms(100));
        if needed {
            bed.ack(4);
        } else {
            bed.ack(4);
            bed.sack(4, &[(3, 4)]);
        }
        bed.send(1).wait(ms(100));
        bed.ack(5);
        assert_eq!(bed.sender.ssthresh() == u32::MAX, !needed);
    }
}

#[test]
fn what_a_peer_drops_after_reporting_it_is_sent_again_after_a_timeout() {
    // RFC 2018 section 8.
    let mut bed = Bed::new(Algorithm::NewReno, true, false);
    bed.send(4).wait(ms(100));
    bed.sack(0, &[(1, 4)]);
    assert_eq!(bed.resend(), [0]);
    bed.wait(ms(100));
    bed.ack(1);
    let mut again = Vec::new();
    for _ in 0..8 {
        bed.expire();
        again.extend(bed.resend());
        let next = (bed.sender.una() - DATA) / MSS;
        if again.contains(&next) {
            bed.wait(ms(100)).ack(next + 1);
            again.extend(bed.resend());
        }
        if bed.sender.una() == bed.sender.nxt() {
            break;
        }
    }
    assert_eq!(bed.sender.una(), at(4), "{again:?}");
}

#[test]
fn a_smaller_mtu_sends_large_segments_again_without_reducing_the_window() {
    let mut bed = Bed::new(Algorithm::NewReno, true, false);
    bed.send(3);
    bed.sender.on_sent(Range::new(at(3), 300), bed.now);
    bed.sender.on_mss_changed(500, bed.now);
    bed.sender.check();
    assert_eq!((bed.sender.cwnd(), bed.sender.in_flight()), (10 * MSS, 300));
    let mut bytes = 0;
    while let Some(range) = bed.sender.next_retransmission(true) {
        assert!(range.len() <= 500);
        bytes += range.len();
        bed.sender.on_retransmitted(range, bed.now);
    }
    assert_eq!(bytes, 3 * MSS);
}

#[test]
fn a_second_loss_in_a_later_window_reduces_again() {
    let mut bed = Bed::new(Algorithm::NewReno, true, false);
    bed.sender.congestion.cwnd = 40 * MSS;
    bed.fill();
    bed.wait(ms(100));
    bed.sack(0, &[(1, 30)]);
    bed.resend();
    let new = bed.fill();
    assert!(new >= 5);
    let first = bed.sender.ssthresh();
    bed.wait(ms(100));
    // The hole is repaired; of the data sent since, the first segment is missing.
    let acked = bed.sack(40, &[(41, 40 + new)]);
    assert!(acked.in_recovery);
    assert!(bed.sender.ssthresh() < first);
}

#[test]
fn without_sack_the_loss_of_the_first_segment_is_repaired_by_the_third_duplicate() {
    // RFC 6582 section 3.2 step 1: `recover` begins at the number of the SYN.
    let mut bed = Bed::new(Algorithm::NewReno, false, false);
    bed.fill();
    bed.wait(ms(100));
    bed.ack(0);
    bed.ack(0);
    assert!(bed.resend().is_empty());
    assert!(bed.ack(0).in_recovery);
    assert_eq!(bed.resend(), [0]);
}

#[test]
fn numbers_of_the_last_loss_do_not_come_back_after_half_of_all_numbers() {
    // 2^31 bytes beyond a number, comparison with it turns round.
    for sack in [false, true] {
        let mut bed = Bed::new(Algorithm::NewReno, sack, false);
        bed.sender.congestion.cwnd = u32::MAX / 4;
        for _ in 0..40 {
            let end = bed.sender.nxt() + (1 << 26);
            bed.sender.on_sent(Range { start: bed.sender.nxt(), end }, bed.now);
            bed.wait(ms(100));
            bed.ack_to(end);
        }
        let first = bed.sender.una();
        bed.sender.congestion.cwnd = 10 * MSS;
        bed.send(10).wait(ms(100));
        for last in 2..=4 {
            let block = Range { start: first + MSS, end: first + last * MSS };
            bed.ack_with(first, if sack { core::slice::from_ref(&block) } else { &[] }, None);
        }
        assert!(bed.sender.in_recovery(), "three duplicates; SACK: {sack}");
        assert_eq!(bed.sender.ssthresh(), 5 * MSS, "the window is halved; SACK: {sack}");
    }
}

#[test]
fn a_late_ack_on_a_steady_path_expires_no_timer() {
    // RFC 6298 section 2: the time-out exceeds the round trip by the clock's granularity at least,
    // to which the delay of ACKs belongs.
    let mut bed = Bed::new(Algorithm::Cubic, true, true);
    for segment in 0..200 {
        bed.send(1).wait(ms(100) + us(u64::from(segment % 3) * 100));
        bed.ack(segment + 1);
    }
    let (srtt, rto) = (bed.sender.srtt().unwrap(), bed.sender.rto());
    assert!(rto >= srtt + ms(50) && rto < srtt + ms(60), "{rto:?} beside {srtt:?}");
    bed.send(1).wait(ms(140));
    assert_eq!(bed.sender.on_timeout(bed.now), Timeout::None);
    bed.sender.set_max_ack_delay(ms(2));
    assert!(bed.sender.rto() < srtt + ms(4), "a peer that is known to answer at once");
}

/// Returns a sender that has 200 segments acknowledged over a steady round trip of 1 ms.
fn steady(sack: bool) -> Bed {
    let mut bed = Bed::new(Algorithm::Cubic, sack, true);
    for segment in 0..200 {
        bed.send(1).wait(ms(1));
        bed.ack(segment + 1);
    }
    assert!(bed.sender.rto() >= ms(51));
    bed
}

#[test]
fn a_lost_retransmission_waits_for_no_delayed_ack_while_the_peer_has_a_gap() {
    // RFC 5681 section 4.2: what is out of order or fills a gap is acknowledged at once.
    for sack in [true, false] {
        let mut bed = steady(sack);
        bed.send(5).wait(ms(1));
        for segment in 201..205 {
            if sack {
                bed.sack(200, &[(201, segment + 1)])
            } else {
                bed.ack(200)
            };
        }
        assert_eq!(bed.resend(), [200], "SACK: {sack}");
        assert_eq!(bed.until_timeout(), ms(5), "SACK: {sack}");
        assert_eq!(bed.expire(), Timeout::Retransmission { consecutive: 1 });
        assert_eq!(bed.resend()[0], 200);
        if sack {
            assert_eq!(bed.until_timeout(), ms(10), "the SACKs still count: backed off");
        } else {
            assert!(bed.until_timeout() >= ms(100), "duplicates do not outlast a time-out");
        }
    }
}

#[test]
fn a_closed_gap_makes_room_for_a_delayed_ack_again() {
    for sack in [true, false] {
        let mut bed = steady(sack);
        bed.send(5).wait(ms(1));
        for segment in 201..205 {
            if sack {
                bed.sack(200, &[(201, segment + 1)])
            } else {
                bed.ack(200)
            };
        }
        assert_eq!(bed.resend(), [200]);
        bed.wait(ms(1));
        bed.ack(205);
        bed.send(2);
        if sack {
            assert_eq!(bed.expire(), Timeout::Probe);
            bed.resend();
        }
        assert!(bed.until_timeout() >= ms(50), "SACK: {sack}");
        // Nor is a delayed ACK of a part a time-out.
        bed.wait(ms(41));
        assert_eq!(bed.sender.on_timeout(bed.now), Timeout::None);
    }
}

#[test]
fn a_probe_goes_out_instead_of_a_timeout_that_would_come_first() {
    // RFC 8985 section 7.2: the probe's time-out is at most the retransmission time-out.
    let mut bed = Bed::new(Algorithm::Cubic, true, true);
    for segment in 0..200 {
        bed.send(1).wait(ms(100));
        bed.ack(segment + 1);
    }
    bed.send(4);
    assert!(bed.sender.rto() < ms(200), "less than two round trips: {:?}", bed.sender.rto());
    assert_eq!(bed.expire(), Timeout::Probe);
    assert_eq!(bed.sender.cwnd(), 10 * MSS);
    assert_eq!(bed.resend(), [203]);
    assert_eq!(bed.expire(), Timeout::Retransmission { consecutive: 1 });
}

#[test]
fn a_d_sack_counts_though_everything_was_acknowledged_before() {
    // RFC 3708 section 3.
    let mut bed = Bed::new(Algorithm::Cubic, true, false);
    bed.fill();
    bed.wait(ms(100));
    bed.sack(0, &[(1, 10)]);
    assert_eq!(bed.resend(), [0]);
    bed.wait(ms(5));
    bed.ack(10);
    assert_eq!(bed.sender.cwnd(), 7 * MSS);
    bed.fill();
    bed.ack(10);
    assert!(bed.sack(10, &[(0, 1)]).spurious);
    assert!(bed.sender.cwnd() >= 10 * MSS);
    assert_eq!(bed.sender.ssthresh(), u32::MAX);
}
