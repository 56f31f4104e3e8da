//! Starts over several nodes, over a network that delays and loses messages, by requesters that are
//! killed: nothing is overcommitted, nobody waits for ever, nothing stays reserved.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use super::gang::{LeaseGang, MemberCall, MemberResponse};
use super::tests::{node, request};
use super::{LeaseBook, LeaseContext};
use crate::model::{LeaseCall, LeaseEnd, LeaseRequest, LeaseStage};

const TICK: Duration = Duration::from_millis(100);

/// Every node has so many GiB, one of which is held.
const TOTAL: u64 = 22;

/// A call is repeated after so many ticks, and given up after so many.
const REPEATED: u64 = 5;
const GIVEN_UP: u64 = 20;

fn at(tick: u64) -> Duration {
    TICK * u32::try_from(tick).unwrap()
}

/// A start over some nodes. All alike take `gib` of each, at `pace` GiB a second.
#[derive(Clone, Debug)]
struct Start {
    comes: u64,
    nodes: Vec<usize>,
    gib: u64,
    pace: u64,
    /// How long its engines live once they have all memory.
    lives: u64,
    killed: Option<u64>,
    priority: i32,
}

#[derive(Clone, Debug)]
struct Schedule {
    starts: Vec<Start>,
    at_once: u32,
    /// Of 1,000 messages so many are lost.
    lost: u32,
    /// A node that no message reaches meanwhile.
    cut_off: (usize, u64, u64),
    seed: u64,
}

prop_compose! {
    fn start()(
        comes in 0..900_u64,
        nodes in prop::sample::subsequence(vec![0, 1, 2, 3], 1..=4),
        gib in 1..=20_u64,
        pace in 1..=8_u64,
        lives in 0..600_u64,
        killed in prop::option::weighted(0.25, 0..1_500_u64),
        priority in -1..=1_i32,
    ) -> Start {
        Start { comes, nodes, gib, pace, lives, killed, priority }
    }
}

prop_compose! {
    fn schedule()(
        starts in prop::collection::vec(start(), 1..9),
        at_once in 1..4_u32,
        lost in prop_oneof![Just(0), 1..60_u32],
        cut_off in (0..4_usize, 0..2_000_u64, 0..400_u64),
        seed in any::<u64>(),
    ) -> Schedule {
        Schedule { starts, at_once, lost, cut_off, seed }
    }
}

/// A message on its way to a node, or back from it.
#[derive(Clone, Debug)]
struct Message {
    arrives: u64,
    start: usize,
    member: usize,
    call: LeaseCall,
    turn: u64,
    called: u64,
    answer: Option<LeaseStage>,
}

/// One member's connection.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    /// The turn of the call under way, and when it began.
    under_way: Option<(u64, u64)>,
    /// The turn of the last call, and when it was answered or given up.
    last: Option<(u64, u64)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Life {
    /// It waits for memory.
    Waits,
    /// Its engines take memory, and have so much each.
    Takes(u64),
    /// They have all of it, until then.
    Serves(u64),
    Over,
}

struct World {
    schedule: Schedule,
    rng: fastrand::Rng,
    books: Vec<LeaseBook>,
    messages: Vec<Message>,
    gangs: Vec<LeaseGang>,
    lines: Vec<Vec<Line>>,
    answers: Vec<Vec<Option<MemberResponse>>>,
    lives: Vec<Life>,
    /// Held memory of each node at every tick.
    samples: Vec<Vec<u64>>,
    /// Since when each start has been giving memory back.
    back: BTreeMap<usize, u64>,
}

impl World {
    fn new(schedule: &Schedule) -> Self {
        let count = schedule.starts.len();
        let members: Vec<usize> = schedule.starts.iter().map(|start| start.nodes.len()).collect();
        Self {
            schedule: schedule.clone(),
            rng: fastrand::Rng::with_seed(schedule.seed),
            books: vec![LeaseBook::default(); 4],
            messages: Vec::new(),
            gangs: vec![LeaseGang::default(); count],
            lines: members.iter().map(|count| vec![Line::default(); *count]).collect(),
            answers: members.iter().map(|count| vec![None; *count]).collect(),
            lives: vec![Life::Waits; count],
            samples: vec![Vec::new(); 4],
            back: BTreeMap::new(),
        }
    }

    fn held(&self, place: usize) -> u64 {
        let starts = self.schedule.starts.iter().zip(&self.lives);
        let own = starts.filter(|(start, _)| start.nodes.contains(&place));
        1 + own
            .map(|(start, life)| match life {
                Life::Takes(gib) => *gib,
                Life::Serves(_) => start.gib,
                Life::Waits | Life::Over => 0,
            })
            .sum::<u64>()
    }

    fn is_lost(&mut self, place: usize, tick: u64) -> bool {
        let (cut, from, ticks) = self.schedule.cut_off;
        let is_cut = place == cut && (from..from + ticks).contains(&tick);
        is_cut || self.rng.u32(0..1_000) < self.schedule.lost
    }

    fn send(&mut self, tick: u64, message: Message) {
        let place = self.schedule.starts[message.start].nodes[message.member];
        if !self.is_lost(place, tick) {
            let slow = self.schedule.lost > 0 && self.rng.u32(0..50) == 0;
            let takes = self.rng.u64(0..if slow { 40 } else { 3 });
            self.messages.push(Message { arrives: tick + takes, ..message });
        }
    }

    fn deliver(&mut self, tick: u64) {
        let messages = std::mem::take(&mut self.messages);
        let (due, later) = messages.into_iter().partition(|message| message.arrives <= tick);
        self.messages = later;
        for message in Vec::from_iter::<Vec<Message>>(due) {
            match message.answer {
                None => {
                    let answer = self.serve(tick, &message);
                    self.send(tick, Message { answer: Some(answer), ..message });
                }
                Some(stage) => self.take_answer(tick, &message, stage),
            }
        }
    }

    /// A node's daemon takes a call, with memory that was sampled up to a second ago.
    fn serve(&mut self, tick: u64, message: &Message) -> LeaseStage {
        let start = &self.schedule.starts[message.start];
        let place = start.nodes[message.member];
        let id = format!("start-{}", message.start);
        let request = LeaseRequest {
            priority: start.priority,
            requested_ms: i64::try_from(start.comes).unwrap(),
            spans_nodes: true,
            turn: message.turn,
            ..request(&id, start.gib)
        };
        let before = self.rng.u64(1..=10).min(tick.max(1));
        let held = self.samples[place].iter().rev().nth(usize::try_from(before).unwrap() - 1);
        let memory = node(TOTAL, held.copied().unwrap_or(1));
        let context = LeaseContext {
            now: at(tick),
            utc_ms: i64::try_from(tick).unwrap() * 100,
            memory: &memory,
            sampled: at(tick.saturating_sub(before)),
            at_once: self.schedule.at_once,
            has_ended: &|_| false,
        };
        let state = self.books[place].call(&request, message.call, &context).unwrap();
        state.map_or(LeaseStage::Ended, |state| state.stage())
    }

    fn take_answer(&mut self, tick: u64, message: &Message, stage: LeaseStage) {
        let line = &mut self.lines[message.start][message.member];
        // A requester that no longer listens does not receive it.
        if line.under_way != Some((message.turn, message.called)) {
            return;
        }
        *line = Line { under_way: None, last: Some((message.turn, tick)) };
        let place = self.schedule.starts[message.start].nodes[message.member];
        self.answers[message.start][message.member] =
            Some(MemberResponse { node: place.to_string().into(), turn: message.turn, stage });
    }

    /// The requester of a start.
    fn request(&mut self, tick: u64, index: usize) {
        let was_taking = self.gangs[index].is_taking();
        let calls = self.gangs[index].advance(at(tick), &self.answers[index]).to_vec();
        if was_taking && !self.gangs[index].is_taking() && !self.gangs[index].is_complete() {
            self.back.insert(index, tick);
        }
        for (member, call) in calls.into_iter().enumerate() {
            let MemberCall { call, turn, .. } = call;
            let line = &mut self.lines[index][member];
            if let Some((turn, since)) = line.under_way {
                if tick - since < GIVEN_UP {
                    continue;
                }
                *line = Line { under_way: None, last: Some((turn, tick)) };
                let node = self.schedule.starts[index].nodes[member].to_string().into();
                let stage = LeaseStage::Waiting;
                self.answers[index][member] = Some(MemberResponse { node, turn, stage });
            }
            let line = &mut self.lines[index][member];
            if line.last.is_none_or(|(last, when)| last != turn || tick - when >= REPEATED) {
                line.under_way = Some((turn, tick));
                let (start, called) = (index, tick);
                let message =
                    Message { arrives: 0, start, member, call, turn, called, answer: None };
                self.send(tick, message);
            }
        }
    }

    fn live(&mut self, tick: u64, index: usize) -> Result<(), TestCaseError> {
        let start = self.schedule.starts[index].clone();
        let id = format!("start-{index}");
        match self.lives[index] {
            Life::Waits if self.gangs[index].is_complete() => {
                for place in &start.nodes {
                    let lease = self.books[*place].get(&id);
                    let is_granted = lease.is_some_and(|lease| lease.is_granted());
                    prop_assert!(is_granted, "{id} on {place} at {tick}: {:?}", self.schedule);
                }
                self.lives[index] = Life::Takes(0);
            }
            Life::Takes(gib) if gib >= start.gib => {
                self.lives[index] = Life::Serves(tick + start.lives);
            }
            // Ten ticks are a second.
            Life::Takes(gib) if tick.is_multiple_of(10) => {
                self.lives[index] = Life::Takes(start.gib.min(gib + start.pace));
            }
            Life::Serves(until) if tick >= until => self.end(index, &start),
            _ => {}
        }
        Ok(())
    }

    /// Its engines have ended, and so has its requester, which gives back what it can reach.
    fn end(&mut self, index: usize, start: &Start) {
        self.lives[index] = Life::Over;
        self.lines[index] = vec![Line::default(); start.nodes.len()];
        for place in &start.nodes {
            self.books[*place].end(&format!("start-{index}"), LeaseEnd::Withdrawn);
        }
    }

    fn tick(&mut self, tick: u64) -> Result<(), TestCaseError> {
        self.deliver(tick);
        for index in 0..self.lives.len() {
            let start = &self.schedule.starts[index];
            if start.killed == Some(tick) {
                // As with SIGKILL: nothing is given back, and nobody takes answers any more.
                self.lives[index] = Life::Over;
            }
            if start.comes <= tick && self.lives[index] != Life::Over {
                self.request(tick, index);
                self.live(tick, index)?;
            }
        }
        for place in 0..self.books.len() {
            let held = self.held(place);
            prop_assert!(held <= TOTAL, "{held} on {place} at {tick}: {:?}", self.schedule);
            self.samples[place].push(held);
            // The node's daemon.
            if tick.is_multiple_of(REPEATED) {
                let memory = node(TOTAL, held);
                self.books[place].advance(&LeaseContext {
                    now: at(tick),
                    utc_ms: i64::try_from(tick).unwrap() * 100,
                    memory: &memory,
                    sampled: at(tick),
                    at_once: self.schedule.at_once,
                    has_ended: &|_| false,
                });
            }
        }
        self.check_given_back(tick)
    }

    /// Without losses, who gives back has nothing after a second, unless it takes again.
    fn check_given_back(&mut self, tick: u64) -> Result<(), TestCaseError> {
        if self.schedule.lost > 0 || self.schedule.cut_off.2 > 0 {
            return Ok(());
        }
        let due: Vec<usize> = self
            .back
            .extract_if(.., |_, then| tick - *then >= 10)
            .map(|(index, _)| index)
            .collect();
        for index in due {
            if self.gangs[index].is_taking() || self.gangs[index].is_complete() {
                continue;
            }
            for place in &self.schedule.starts[index].nodes {
                let lease = self.books[*place].get(&format!("start-{index}"));
                let has_some = lease.is_some_and(|lease| lease.is_granted());
                prop_assert!(!has_some, "{index} on {place} at {tick}: {:?}", self.schedule);
            }
        }
        Ok(())
    }
}

fn run(schedule: &Schedule) -> Result<(), TestCaseError> {
    let mut world = World::new(schedule);
    let mut tick = 0;
    while world.lives.iter().any(|life| *life != Life::Over) {
        prop_assert!(tick < 60_000, "{:?} {schedule:?} {:?}", world.lives, world.books);
        world.tick(tick)?;
        tick += 1;
    }
    // What the killed had reserved ends, with late messages too.
    for _ in 0..1_300 {
        world.tick(tick)?;
        tick += 1;
    }
    for book in &world.books {
        prop_assert!(book.leases().is_empty(), "{book:?} {schedule:?}");
        prop_assert_eq!(book.reserved().count(), 0);
    }
    Ok(())
}

proptest! {
    /// With PROPTEST_CASES=10000 this takes half a minute.
    #[test]
    fn starts_over_several_nodes_have_all_or_nothing(schedule in schedule()) {
        run(&schedule)?;
    }
}

/// Two starts that want the same two nodes, which each of them names in another order.
#[test]
fn two_starts_over_the_same_nodes_come_one_after_the_other() {
    let start = |comes, nodes: &[usize]| Start {
        comes,
        nodes: nodes.to_vec(),
        gib: 15,
        pace: 3,
        lives: 100,
        killed: None,
        priority: 0,
    };
    let starts = vec![start(0, &[0, 1]), start(0, &[1, 0])];
    let schedule = Schedule { starts, at_once: 1, lost: 0, cut_off: (0, 0, 0), seed: 7 };
    run(&schedule).unwrap();
}
