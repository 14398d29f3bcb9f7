//! Models of both queues: what is put is taken once and whole, nobody sleeps on; the flaw of the published form; mutants.
#![cfg(loom)]

mod model;

use larder_sync::queue::{BoundedQueue, TakeError, TicketQueue};
use larder_sync::step;
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

/// A value whose content loom watches.
struct Message(UnsafeCell<usize>);

fn message(number: usize) -> Box<Message> {
    let message = Box::new(Message(UnsafeCell::new(0)));
    // Written, because loom does not count the making as an access.
    // SAFETY: owned.
    message.0.with_mut(|content| unsafe { *content = number });
    message
}

fn number(message: Box<Message>) -> usize {
    // SAFETY: owned.
    message.0.with_mut(|number| unsafe { *number })
}

/// One thread puts `values`, another takes as many, the first one sees that they come in order.
fn in_order(values: usize, preemptions: usize) {
    model::explore(preemptions, move || {
        let queue = Arc::new(BoundedQueue::with_capacity(2));
        let producer = {
            let queue = queue.clone();
            thread::spawn(move || (1..=values).for_each(|value| queue.put(message(value))))
        };
        for value in 1..=values {
            assert_eq!(number(queue.take()), value);
        }
        producer.join().unwrap();
        assert!(matches!(queue.try_take(), Err(TakeError::Empty)));
    });
}

fn tickets_in_order(values: usize, capacity: usize, preemptions: usize) {
    model::explore(preemptions, move || {
        let queue = Arc::new(TicketQueue::with_capacity(capacity));
        let producer = {
            let queue = queue.clone();
            thread::spawn(move || (1..=values).for_each(|value| queue.put(message(value))))
        };
        for value in 1..=values {
            assert_eq!(number(queue.take()), value);
        }
        producer.join().unwrap();
    });
}

/// Two put; the one that has returned takes at once: its value is there, so the queue is not empty.
fn a_finished_put_is_not_overlooked() {
    model::explore(3, || {
        let queue = Arc::new(BoundedQueue::with_capacity(2));
        let other = {
            let queue = queue.clone();
            thread::spawn(move || queue.put(message(1)))
        };
        queue.put(message(2));
        let taken = queue.try_take();
        assert!(!matches!(taken, Err(TakeError::Empty)), "said to be empty with a value in it");
        other.join().unwrap();
        drop(taken);
    });
}

#[test]
fn one_producer_and_one_consumer() {
    in_order(3, 2);
}

#[test]
fn one_producer_and_one_consumer_with_tickets() {
    tickets_in_order(2, 1, 2);
    tickets_in_order(3, 2, 2);
}

#[test]
fn busy_is_not_empty() {
    a_finished_put_is_not_overlooked();
}

#[test]
#[should_panic(expected = "said to be empty with a value in it")]
fn the_published_form_says_empty_with_a_value_in_it() {
    step::without("queue: busy is not empty", a_finished_put_is_not_overlooked);
}

macro_rules! mutants {
    ($($name:ident: $step:literal, $model:expr => $sign:literal;)*) => { $(
        #[test]
        #[should_panic(expected = $sign)]
        fn $name() {
            step::without($step, || $model);
        }
    )* };
}

mutants! {
    slot_read_relaxed: "queue.slot: Acquire", in_order(3, 3) => "Causality violation";
    slot_written_relaxed: "queue.slot: Release", in_order(3, 3) => "Causality violation";
    waiter_without_its_half: "events: the heavy half", in_order(1, 3) => "deadlock";
    notifier_without_its_half: "events: the light half", in_order(1, 3) => "deadlock";
    mail_read_relaxed: "ticket.mail: Acquire", tickets_in_order(3, 2, 3) => "Causality violation";
    mail_written_relaxed: "ticket.mail: Release", tickets_in_order(3, 2, 3) => "Causality violation";
    turn_read_relaxed: "ticket.turn: Acquire", tickets_in_order(2, 1, 3) => "Causality violation";
    turn_written_relaxed: "ticket.turn: Release", tickets_in_order(2, 1, 3) => "Causality violation";
}

/// One puts, takes the value back if nobody has it, and puts it again; another takes.
fn a_value_comes_twice(preemptions: usize) {
    model::explore(preemptions, || {
        let queue = Arc::new(BoundedQueue::with_capacity(2));
        let consumer = {
            let queue = queue.clone();
            thread::spawn(move || queue.take())
        };
        queue.put(7);
        if let Ok(value) = queue.try_take() {
            queue.put(value);
        }
        assert_eq!(consumer.join().unwrap(), 7);
    });
}

#[test]
fn a_wake_for_a_value_that_is_gone_is_not_the_last() {
    a_value_comes_twice(3);
}

/// Its count is taken off for a value that another one takes, and it falls asleep after that.
#[test]
#[should_panic(expected = "deadlock")]
fn who_reads_the_event_after_counting_itself_sleeps_uncounted() {
    step::without("events: the event before the count", || a_value_comes_twice(3));
}

/// Two take and two put (`LOOM_MAX_PREEMPTIONS=2` takes minutes). The one who puts first may be slow: then who was woken for the second value finds it behind one
/// that is not finished, and sleeps again.
fn two_values_for_two_sleepers(preemptions: usize) {
    model::explore(preemptions, || {
        let queue = Arc::new(BoundedQueue::with_capacity(2));
        let producers: Vec<_> = (1..=2)
            .map(|value| {
                let queue = queue.clone();
                thread::spawn(move || queue.put(value))
            })
            .collect();
        let consumer = {
            let queue = queue.clone();
            thread::spawn(move || queue.take())
        };
        let sum = queue.take() + consumer.join().unwrap();
        assert_eq!(sum, 3);
        for producer in producers {
            producer.join().unwrap();
        }
    });
}

#[test]
fn a_value_behind_an_unfinished_one_is_not_left_to_a_sleeper() {
    two_values_for_two_sleepers(1);
}

#[test]
#[should_panic(expected = "deadlock")]
fn who_slept_and_does_not_pass_on_leaves_a_value() {
    step::without("events: who slept passes on", || two_values_for_two_sleepers(2));
}

/// The same from the other side: two put into a full queue, and two take.
fn two_rooms_for_two_sleepers(preemptions: usize) {
    model::explore(preemptions, || {
        let queue = Arc::new(BoundedQueue::with_capacity(2));
        queue.put(1);
        queue.put(2);
        let consumers: Vec<_> = (0..2)
            .map(|_| {
                let queue = queue.clone();
                thread::spawn(move || queue.take())
            })
            .collect();
        let producer = {
            let queue = queue.clone();
            thread::spawn(move || queue.put(3))
        };
        queue.put(4);
        producer.join().unwrap();
        consumers.into_iter().for_each(|consumer| assert!(consumer.join().unwrap() != 0));
    });
}

#[test]
fn room_behind_an_unfinished_slot_is_not_left_to_a_sleeper() {
    two_rooms_for_two_sleepers(1);
}

#[test]
#[should_panic(expected = "deadlock")]
fn who_slept_and_does_not_pass_on_leaves_room() {
    step::without("events: who slept passes on", || two_rooms_for_two_sleepers(2));
}
