//! The window and the timers where nothing is lost.

use super::*;
use alloc::vec::Vec;

#[test]
fn the_initial_window_is_ten_segments_or_14600_bytes() {
    // RFC 6928 section 2.
    for (mss, window) in [(536, 5_360), (1_460, 14_600), (1_461, 14_600), (8_960, 17_920)] {
        assert_eq!(initial_window(mss), window);
    }
}

#[test]
fn after_a_syn_lost_once_the_window_is_whole_and_after_two_it_is_one_segment() {
    // RFC 6928 section 2 and RFC 6298 section 5.7.
    for (losses, window, rto) in [(0, 10, ms(1)), (1, 10, ms(3_000)), (2, 1, ms(3_000))] {
        let mut sender = Sender::new(&Config::default(), ISS, MSS, Instant(0));
        sender.on_sent(Range::new(ISS, 1), Instant(0));
        let mut now = Instant(0);
        for lost in 1..=losses {
            now = sender.next_timeout().expect("runs");
            assert_eq!(sender.on_timeout(now), Timeout::Retransmission { consecutive: lost });
            assert_eq!(sender.next_retransmission(true), Some(Range::new(ISS, 1)));
            sender.on_retransmitted(Range::new(ISS, 1), now);
        }
        now = now + us(10);
        let info = AckInfo { ack: DATA, sack: &[], echoed: None, ecn_echo: false, may_be_duplicate: false };
        assert!(sender.on_ack(&info, now).expect("sent").all_acked);
        sender.on_established(&Negotiated { mss: MSS, sack: true, timestamp_tick: None }, now);
        assert_eq!(sender.may_send_new(now), window * MSS, "after {losses}");
        assert!(sender.rto() >= rto && (losses == 0) == sender.srtt().is_some(), "after {losses}");
    }
}

#[test]
fn a_syn_backs_off_from_one_second() {
    let mut sender = Sender::new(&Config::default(), ISS, MSS, Instant(0));
    sender.on_sent(Range::new(ISS, 1), Instant(0));
    let mut at = Vec::new();
    for _ in 0..8 {
        let now = sender.next_timeout().expect("runs");
        at.push(now.0 / 1_000_000_000);
        sender.on_timeout(now);
        sender.on_retransmitted(sender.next_retransmission(true).expect("the SYN"), now);
    }
    assert_eq!(at, [1, 3, 7, 15, 31, 63, 123, 183], "60 s at most between two");
}

#[test]
fn slow_start_doubles_the_window_in_a_round_trip_however_acks_are_split() {
    for pieces in [1, 4, 1000] {
        let mut bed = Bed::new(Algorithm::NewReno, true, false);
        assert_eq!(bed.fill(), 10);
        bed.wait(ms(100));
        for segment in 0..10 {
            for piece in 1..=pieces {
                bed.ack_to(at(segment) + MSS * piece / pieces);
            }
        }
        assert_eq!(bed.sender.cwnd(), 20 * MSS, "in {pieces} pieces");
    }
}

#[test]
fn congestion_avoidance_grows_by_a_segment_in_a_round_trip() {
    let mut bed = Bed::new(Algorithm::NewReno, true, false);
    bed.sender.congestion.ssthresh = 10 * MSS;
    let mut sent = 0;
    for round in 0..5 {
        sent += bed.fill();
        assert_eq!(bed.sender.in_flight(), (10 + round) * MSS);
        bed.wait(ms(100));
        let from = (bed.sender.una() - DATA) / MSS;
        for segment in from..sent {
            bed.ack(segment + 1);
        }
    }
    assert_eq!(bed.sender.cwnd(), 15 * MSS);
}

#[test]
fn a_window_that_is_not_used_does_not_grow() {
    for algorithm in [Algorithm::NewReno, Algorithm::Cubic, Algorithm::Dctcp] {
        let mut bed = Bed::new(algorithm, true, false);
        for segment in 1..200 {
            bed.send(1).wait(ms(100));
            bed.ack(segment);
        }
        assert_eq!(bed.sender.cwnd(), 10 * MSS, "{algorithm:?}");
    }
}

#[test]
fn an_idle_window_fades_to_the_initial_one() {
    let mut bed = Bed::new(Algorithm::NewReno, true, false);
    bed.sender.congestion.cwnd = 80 * MSS;
    bed.send(1).wait(ms(100));
    bed.ack(1);
    let rto = bed.sender.rto();
    assert_eq!(bed.sender.may_send_new(bed.now), 80 * MSS);
    bed.wait(rto + ms(1));
    assert_eq!(bed.sender.may_send_new(bed.now), 40 * MSS);
    bed.wait(rto);
    assert_eq!(bed.sender.may_send_new(bed.now), 20 * MSS);
    bed.wait(Duration::from_hours(1));
    assert_eq!(bed.sender.may_send_new(bed.now), 10 * MSS);
    bed.send(1);
    assert_eq!(bed.sender.cwnd(), 10 * MSS);
}

#[test]
fn the_timeout_follows_rfc_6298() {
    let mut rtt = Rtt::new(&Config { max_ack_delay: Duration::ZERO, ..Config::default() });
    assert_eq!(rtt.rto(), ms(1_000), "before a measurement");
    rtt.on_sample(ms(100), 1);
    assert_eq!((rtt.srtt(), rtt.rttvar(), rtt.rto()), (Some(ms(100)), Some(ms(50)), ms(300)));
    rtt.on_sample(ms(180), 1);
    assert_eq!((rtt.srtt(), rtt.rttvar()), (Some(ms(110)), Some(us(57_500))));
    rtt.back_off();
    assert_eq!(rtt.rto(), ms(680));
    for _ in 0..40 {
        rtt.back_off();
    }
    assert_eq!(rtt.rto(), ms(60_000), "never more");
    for _ in 0..200 {
        rtt.on_sample(us(10), 1);
    }
    assert_eq!(rtt.rto(), ms(5), "never less");
}

#[test]
fn a_large_window_of_equal_round_trips_does_not_forget_variation_at_once() {
    // RFC 7323 appendix G: the weight is per window, not per sample.
    let (mut few, mut many) = (Rtt::new(&Config::default()), Rtt::new(&Config::default()));
    for rtt in [&mut few, &mut many] {
        rtt.on_sample(ms(100), 1);
    }
    few.on_sample(ms(100), 1);
    for _ in 0..50 {
        many.on_sample(ms(100), 50);
    }
    let (few, many) = (few.rttvar().expect("measured"), many.rttvar().expect("measured"));
    assert!(few.abs_diff(many) < ms(2), "{few:?} {many:?}");
}

#[test]
fn nothing_is_measured_by_what_was_sent_twice_unless_by_timestamp() {
    for stamps in [false, true] {
        let mut bed = Bed::new(Algorithm::NewReno, false, stamps);
        bed.send(1);
        assert_eq!(bed.expire(), Timeout::Retransmission { consecutive: 1 });
        assert_eq!(bed.resend(), [0]);
        let (again, backed_off) = (bed.now, bed.sender.rto());
        bed.wait(ms(50));
        bed.ack_with(at(1), &[], stamps.then_some(again));
        assert_eq!(bed.sender.rto() < backed_off, stamps, "Karn's algorithm");
        assert_eq!(bed.sender.srtt().expect("known") < ms(100), stamps);
    }
}

#[test]
fn new_acknowledgements_restart_the_timer_and_the_last_one_stops_it() {
    let mut bed = Bed::new(Algorithm::NewReno, false, false);
    bed.send(2);
    assert_eq!(bed.until_timeout(), bed.sender.rto() - us(2));
    bed.wait(ms(100));
    bed.ack(1);
    assert_eq!(bed.until_timeout(), bed.sender.rto());
    bed.ack(2);
    assert_eq!(bed.sender.next_timeout(), None);
}

#[test]
fn a_mark_cuts_the_window_once_in_a_round_trip() {
    // RFC 3168 section 6.1.2.
    let mut bed = Bed::new(Algorithm::NewReno, true, false);
    bed.fill();
    bed.wait(ms(100));
    let marked = |bed: &mut Bed, segment| {
        let info =
            AckInfo { ack: at(segment), sack: &[], echoed: None, ecn_echo: true, may_be_duplicate: false };
        let acked = bed.sender.on_ack(&info, bed.now).expect("sent");
        (acked.send_cwr, bed.sender.ssthresh() / MSS)
    };
    assert_eq!(marked(&mut bed, 1), (true, 4), "half of the nine segments in flight");
    assert_eq!(marked(&mut bed, 2), (false, 4));
    assert_eq!(
        marked(&mut bed, 10),
        (false, 4),
        "the end of the window that was cut, whose peer has not seen CWR yet"
    );
    bed.fill();
    bed.wait(ms(100));
    assert!(marked(&mut bed, 11).0, "a new round");
}

#[test]
fn a_mark_counts_again_once_a_cut_was_taken_back() {
    // RFC 3522: nothing was reduced, so the first mark that follows is the first of its window.
    let mut bed = Bed::new(Algorithm::NewReno, false, true);
    let original = bed.now;
    bed.fill();
    bed.expire();
    assert_eq!(bed.resend(), [0]);
    bed.wait(ms(100));
    assert!(bed.ack_with(at(1), &[], Some(original)).spurious);
    let info = AckInfo { ack: at(1), sack: &[], echoed: None, ecn_echo: true, may_be_duplicate: false };
    assert!(bed.sender.on_ack(&info, bed.now).expect("sent").send_cwr);
}

#[test]
fn pacing_spreads_the_window_over_a_round_trip() {
    let mut bed = Bed::new(Algorithm::NewReno, true, false);
    assert_eq!(bed.sender.pacing_interval(), ms(5), "20 segments in 100 ms, in slow start");
    bed.sender.congestion.ssthresh = bed.sender.congestion.cwnd;
    assert_eq!(bed.sender.pacing_interval(), ms(8));
}

#[test]
fn a_syn_that_left_before_its_sender_was_made_is_measured_from_then() {
    let mut sender = Sender::new(&Config::default(), ISS, MSS, Instant(90_000_000));
    sender.on_sent(Range::new(ISS, 1), Instant(10_000_000));
    let info = AckInfo { ack: DATA, sack: &[], echoed: None, ecn_echo: false, may_be_duplicate: false };
    sender.on_ack(&info, Instant(90_000_000)).expect("sent");
    assert_eq!(sender.srtt(), Some(ms(80)));
}
