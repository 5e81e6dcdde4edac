//! The normal form of a state, and its fingerprint. States with equal futures have one normal form; states
//! that differ only in the names of clients with equal profiles have one fingerprint.

use super::list::List;
use super::state::{
    CLIENTS, Client, Faults, Holder, Key, Kind, Message, Phase, Rule, Server, Setup, Small, State, Token,
};

impl State {
    pub(crate) fn normalize(&mut self, setup: &Setup) {
        for (client, at) in self.clients.iter_mut().enumerate() {
            if at.unanswered == 0 {
                at.not_after = 0;
            }
            at.asked &= at.asks < setup.asks;
            at.released &= at.releases < setup.releases;
            if setup.clients[client].polls {
                at.was_absent &= at.arrival > 0;
            } else {
                self.server.here[client] = 0;
            }
        }
        if self.server.queue.is_empty() {
            self.server.queue_left = 0;
        }
        if self.server.absent.is_empty() {
            self.server.absent_left = 0;
        }
        let mut messages = List::default();
        for message in self.messages.iter() {
            if let Some(message) = self.relevant(setup, *message) {
                messages.push(message);
            }
        }
        messages.sort_unstable();
        self.messages = messages;
        self.renumber(|state, each| state.clients.iter_mut().for_each(|at| each(&mut at.arrival)));
        self.renumber(|state, each| {
            state.begun.iter_mut().for_each(&mut *each);
            each(&mut state.server.last);
            match &mut state.server.key {
                Key::Free => {}
                Key::Exclusive(holder) => each(&mut holder.fence),
                Key::Shares { holders, .. } => holders.iter_mut().for_each(|holder| each(&mut holder.fence)),
            }
            state.clients.iter_mut().for_each(|at| each(&mut at.fence));
            state.messages.iter_mut().for_each(|message| each(&mut message.fence));
        });
    }

    /// The message without the fields that are never read again; none for a message that changes nothing.
    fn relevant(&self, setup: &Setup, mut message: Message) -> Option<Message> {
        let at = &self.clients[usize::from(message.token.client)];
        let current = message.attempt == at.attempt && !matches!(at.phase, Phase::Done | Phase::Dead);
        let has_effect = match message.kind {
            Kind::Ask => {
                message.again &= !setup.keeps(Rule::WaitLooksForEntry) || !setup.keeps(Rule::NewAtTail);
                true
            }
            Kind::Release => {
                message.thorough &= setup.keeps(Rule::ReleaseRemovesEntries);
                true
            }
            Kind::Renew => true,
            Kind::Granted if current => true,
            Kind::Granted | Kind::Push if at.phase == Phase::Dead => false,
            Kind::Granted => setup.keeps(Rule::GiveBack),
            Kind::Push => match self.current(setup, message.token) {
                Some(at) => at.phase == Phase::Waiting || !setup.keeps(Rule::FreshToken),
                None => setup.keeps(Rule::GiveBack) || !setup.keeps(Rule::FreshToken),
            },
            _ => unreachable!("an answer that is heard at once"),
        };
        has_effect.then_some(message)
    }

    /// Replaces numbers, of which only the order matters, by their ranks.
    fn renumber(&mut self, visit: impl Fn(&mut State, &mut dyn FnMut(&mut Small))) {
        let mut present = 0_u64;
        visit(self, &mut |number| present |= 1 << *number);
        present &= !1;
        visit(self, &mut |number| {
            *number = (present & ((2_u64 << *number) - 1)).count_ones() as Small;
        });
    }

    /// A hash of the state. Clients with equal profiles stand in the order of their digests, not of their names.
    pub(crate) fn fingerprint(&self, setup: &Setup) -> u64 {
        let digests = self.digests();
        let mut order = [0, 1, 2, 3];
        let class =
            |client: usize| setup.clients.iter().position(|profile| *profile == setup.clients[client]);
        order[..self.clients.len()].sort_by_key(|&client| (class(client), digests[client]));
        self.hash(order)
    }

    /// A hash of each client's part of the state that does not depend on the names of clients.
    fn digests(&self) -> [u64; CLIENTS] {
        let mut digests = [0; CLIENTS];
        let server = &self.server;
        for (client, at) in self.clients.iter().enumerate() {
            let mut hash = Hash::default();
            at.write(&mut hash);
            hash.bytes([u8::from(server.subscribed[client]), server.here[client], 0, 0]);
            for (place, token) in server.queue.iter().enumerate() {
                if usize::from(token.client) == client {
                    hash.bytes([1, place as u8, token.number, 0]);
                }
            }
            for (place, token) in server.absent.iter().enumerate() {
                if usize::from(token.client) == client {
                    hash.bytes([2, place as u8, token.number, 0]);
                }
            }
            let mut sum = 0_u64;
            for holder in
                server.key.holders().iter().filter(|holder| usize::from(holder.token.client) == client)
            {
                let mut own = Hash::default();
                own.bytes([3, holder.token.number, holder.fence, holder.left]);
                sum = sum.wrapping_add(own.0);
            }
            for message in self.messages.iter().filter(|message| usize::from(message.token.client) == client)
            {
                let mut own = Hash::default();
                message.write(&mut own, 0);
                sum = sum.wrapping_add(own.0);
            }
            hash.word(sum);
            digests[client] = hash.0;
        }
        digests
    }

    fn hash(&self, order: [usize; CLIENTS]) -> u64 {
        let mut place = [0_u8; CLIENTS];
        for (to, &from) in order.iter().enumerate() {
            place[from] = to as u8;
        }
        let renamed = |token: Token| Token { client: place[usize::from(token.client)], ..token };
        let mut hash = Hash::default();
        for &client in order.iter().take(self.clients.len()) {
            self.clients[client].write(&mut hash);
            hash.bytes([u8::from(self.server.subscribed[client]), self.server.here[client], 0, 0]);
        }
        let Server { key, queue, queue_left, absent, absent_left, last, .. } = &self.server;
        let mut holders: List<Holder, CLIENTS> = List::default();
        for holder in key.holders() {
            holders.push(Holder { token: renamed(holder.token), ..*holder });
        }
        holders.sort_unstable();
        for Holder { token, fence, left } in holders.iter() {
            hash.bytes([token.client << 4 | token.number, *fence, *left, 1]);
        }
        match key {
            Key::Free => hash.bytes([0; 4]),
            Key::Exclusive(_) => hash.bytes([1; 4]),
            Key::Shares { used, soonest, left, .. } => hash.bytes([2, *used, *soonest, *left]),
        }
        hash.bytes([*queue_left, *absent_left, *last, queue.len() as u8]);
        for list in [queue, absent] {
            let mut word = 1_u64;
            for &token in list.iter() {
                let token = renamed(token);
                word = word << 4 | u64::from(token.client << 2 | token.number);
            }
            hash.word(word);
        }
        let mut messages = self.messages;
        for message in messages.iter_mut() {
            message.token = renamed(message.token);
        }
        messages.sort_unstable();
        for message in messages.iter() {
            message.write(&mut hash, message.token.client);
        }
        let Faults { losses, crashes, disconnects, forced, refusals, slow_ticks } = self.faults;
        hash.bytes([losses | crashes << 4, disconnects | forced << 4, refusals, slow_ticks]);
        let broken = &self.broken;
        let flags = [
            broken.fence_fell,
            broken.overtaken,
            broken.left_fitting,
            broken.short,
            broken.removed,
            broken.confirmed,
            broken.place_lost,
            broken.jumped,
        ];
        let flags = flags.into_iter().fold(0, |word, flag| word << 1 | u64::from(flag));
        hash.word(flags);
        hash.bytes([self.begun[0], self.begun[1], messages.len() as u8, 0]);
        hash.0
    }
}

impl Client {
    fn write(&self, hash: &mut Hash) {
        let flags = [self.asked, self.released, self.forced, self.was_absent, self.repeated];
        let flags = flags.into_iter().fold(0, |word, flag| word << 1 | u8::from(flag));
        hash.bytes([self.phase as u8, self.attempt, self.first_ask, self.other_ask]);
        hash.bytes([self.fence, self.left, self.asks, self.unanswered]);
        hash.bytes([self.not_after, self.releases, self.renewals, self.arrival]);
        hash.bytes([flags, 0, 0, 0]);
    }
}

impl Message {
    fn write(&self, hash: &mut Hash, client: u8) {
        let flags = [self.again, self.thorough, self.last, self.silent];
        let flags = flags.into_iter().fold(0, |word, flag| word << 1 | u8::from(flag));
        hash.bytes([self.kind as u8, client << 4 | self.token.number, self.attempt, self.fence]);
        hash.bytes([self.age, self.not_after, flags, 0]);
    }
}

/// A hash by multiplication: the fingerprints are compared among the states of one run only.
struct Hash(u64);

impl Default for Hash {
    fn default() -> Self {
        Hash(0x9E37_79B9_7F4A_7C15)
    }
}

impl Hash {
    fn bytes(&mut self, bytes: [u8; 4]) {
        self.word(u64::from(u32::from_le_bytes(bytes)));
    }

    fn word(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word.wrapping_mul(0xA076_1D64_78BD_642F)) * 0xE703_7ED1_A0B4_28DB;
        self.0 = (product as u64 ^ (product >> 64) as u64).wrapping_add(0x2545_F491_4F6C_DD1D);
    }
}
