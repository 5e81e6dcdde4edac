//! `settle`: a batch gives fences from the clock, before it knows the highest fence, and shifts them all if that fence was
//! not lower. Every short batch is compared with an oracle that reads the highest fence at each grant.

use leasehold_testkit::scaled;

type Token = u8;
type Fence = i16;

/// The server's clock, in fences.
const BASE: Fence = 10;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Rule {
    /// All fences rise by what the highest fence is ahead of the clock.
    Shift,
    /// H5: a grant is written again only where its token and optimistic fence still stand.
    WriteOwnOnly,
    /// H6: an answer rises with the grant that it names, also one whose fence the script read from the key.
    AnswersShift,
}

/// A name: the first is held by one token, the second by any number of readers.
#[derive(Clone, Debug, Default, PartialEq)]
struct Name {
    holders: Vec<(Token, Fence)>,
    queue: Vec<Token>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Item {
    asks: bool,
    token: Token,
    name: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Answer {
    Granted(Fence),
    Queued,
    Released,
    Nothing,
}

#[derive(Clone, Debug, PartialEq)]
struct Server {
    names: [Name; 2],
    last: Fence,
}

#[derive(Clone, Copy)]
struct Grant {
    name: usize,
    token: Token,
    fence: Fence,
    pushed: bool,
}

/// One batch: the script with optimistic fences, or the oracle.
struct Batch {
    server: Server,
    oracle: bool,
    next: Fence,
    grants: Vec<Grant>,
    answers: Vec<Answer>,
    /// The grant that an answer names, and whether the answer's fence was read from the key.
    named: Vec<Option<(usize, bool)>>,
    without: Option<Rule>,
}

impl Batch {
    fn run(server: &Server, items: &[Item], oracle: bool, without: Option<Rule>) -> Batch {
        let (server, none) = (server.clone(), Vec::new());
        let mut batch =
            Batch { server, oracle, next: BASE, grants: vec![], answers: vec![], named: none, without };
        for item in items {
            let (answer, named) = if item.asks { batch.ask(item) } else { (batch.release(item), None) };
            batch.answers.push(answer);
            batch.named.push(named);
        }
        if !oracle && !batch.grants.is_empty() {
            batch.settle();
        }
        batch
    }

    fn ask(&mut self, item: &Item) -> (Answer, Option<(usize, bool)>) {
        let name = &self.server.names[item.name];
        if let Some(&(_, fence)) = name.holders.iter().find(|(token, _)| *token == item.token) {
            let is_it =
                |grant: &Grant| (grant.name, grant.token, grant.fence) == (item.name, item.token, fence);
            let grant = self.grants.iter().rposition(is_it);
            return (Answer::Granted(fence), grant.map(|grant| (grant, true)));
        }
        let shared = item.name == 1;
        if shared || name.holders.is_empty() && name.queue.is_empty() {
            let fence = self.grant(item.name, item.token, false);
            return (Answer::Granted(fence), Some((self.grants.len() - 1, false)));
        }
        self.serve(item.name);
        let name = &mut self.server.names[item.name];
        if name.holders.iter().any(|(token, _)| *token == item.token) {
            return self.ask(item);
        }
        if !name.queue.contains(&item.token) {
            name.queue.push(item.token);
        }
        (Answer::Queued, None)
    }

    fn release(&mut self, item: &Item) -> Answer {
        let name = &mut self.server.names[item.name];
        let held = name.holders.len();
        name.holders.retain(|(token, _)| *token != item.token);
        name.queue.retain(|token| *token != item.token);
        if name.holders.len() == held {
            return Answer::Nothing;
        }
        self.serve(item.name);
        Answer::Released
    }

    fn serve(&mut self, name: usize) {
        let it = &mut self.server.names[name];
        if it.holders.is_empty() && !it.queue.is_empty() {
            let head = it.queue.remove(0);
            self.grant(name, head, true);
        }
    }

    fn grant(&mut self, name: usize, token: Token, pushed: bool) -> Fence {
        let fence = if self.oracle { BASE.max(self.server.last + 1) } else { self.next };
        if self.oracle {
            self.server.last = fence;
        }
        self.next += 1;
        self.server.names[name].holders.push((token, fence));
        self.grants.push(Grant { name, token, fence, pushed });
        fence
    }

    fn settle(&mut self) {
        let before = self.server.last;
        self.server.last = self.next - 1;
        if before < BASE || self.without == Some(Rule::Shift) {
            return;
        }
        let ahead = before + 1 - BASE;
        self.server.last += ahead;
        for grant in &mut self.grants {
            let holders = &mut self.server.names[grant.name].holders;
            let own = holders.iter_mut().find(|holder| **holder == (grant.token, grant.fence));
            grant.fence += ahead;
            if let Some(holder) = own {
                holder.1 = grant.fence;
            } else if self.without == Some(Rule::WriteOwnOnly) {
                // SET writes the whole key; HSET adds a field.
                if grant.name == 0 {
                    holders.clear();
                }
                holders.push((grant.token, grant.fence));
            }
        }
        for (answer, named) in self.answers.iter_mut().zip(&self.named) {
            if let (Answer::Granted(fence), Some((_, read))) = (answer, named)
                && !(*read && self.without == Some(Rule::AnswersShift))
            {
                *fence += ahead;
            }
        }
    }

    fn pushes(&self) -> Vec<(Token, Fence)> {
        let pushed = self.grants.iter().filter(|grant| grant.pushed);
        pushed.map(|grant| (grant.token, grant.fence)).collect()
    }
}

/// The first batch whose result differs from the oracle's.
fn difference(without: Option<Rule>) -> Option<String> {
    let items: Vec<Item> = [(1, 0), (2, 0), (3, 0), (4, 1), (5, 1)]
        .into_iter()
        .flat_map(|(token, name)| [true, false].map(|asks| Item { asks, token, name }))
        .collect();
    let longest = if scaled(1_000) < 1_000 { 3 } else { 4 };
    let mut compared = 0_u64;
    for length in 1..=longest {
        for code in 0..items.len().pow(length) {
            let batch: Vec<Item> =
                (0..length).map(|place| items[code / items.len().pow(place) % items.len()]).collect();
            for server in servers() {
                compared += 1;
                let script = Batch::run(&server, &batch, false, without);
                let oracle = Batch::run(&server, &batch, true, None);
                let same = (&script.server, &script.answers, script.pushes())
                    == (&oracle.server, &oracle.answers, oracle.pushes());
                if !same {
                    let found =
                        |it: &Batch| format!("{:?} {:?}, pushes {:?}", it.server, it.answers, it.pushes());
                    let (script, oracle) = (found(&script), found(&oracle));
                    return Some(format!("{server:?}\n  {batch:?}\n  script {script}\n  oracle {oracle}"));
                }
            }
        }
    }
    println!("settle: {compared} batches and states compared, of up to {longest} items");
    None
}

/// Free or held, with up to two waiters, and the highest fence around the clock.
fn servers() -> Vec<Server> {
    let mut servers = Vec::new();
    for held in [false, true] {
        for waiters in 0..3 {
            for last in BASE - 2..=BASE + 2 {
                let holders = if held { vec![(1, last)] } else { vec![] };
                let queue = [2, 3][..waiters].to_vec();
                servers.push(Server { names: [Name { holders, queue }, Name::default()], last });
            }
        }
    }
    servers
}

fn differs_without(rule: Rule) {
    let found = difference(Some(rule)).unwrap_or_else(|| panic!("without {rule:?} nothing differs"));
    println!("without {rule:?}:\n  {found}");
}

#[test]
fn a_batch_gives_the_fences_that_one_grant_after_the_other_would() {
    assert_eq!(difference(None), None);
}

#[test]
fn a_batch_that_does_not_shift_gives_a_fence_twice() {
    differs_without(Rule::Shift);
}

#[test]
fn h5_a_batch_that_writes_every_grant_again_revives_a_released_one() {
    differs_without(Rule::WriteOwnOnly);
}

#[test]
fn h6_an_answer_that_keeps_the_fence_it_read_names_a_fence_that_was_never_given() {
    differs_without(Rule::AnswersShift);
}
