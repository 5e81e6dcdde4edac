//! Where a log goes that is read afterwards.

use std::fmt::Debug;
use std::io::Write;
use std::sync::{Arc, Mutex};

#[derive(Clone, Default)]
pub struct Page(Arc<Mutex<Vec<u8>>>);

impl Page {
    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// Notes what would be printed of a value, as it is and in full.
    pub fn note(&self, value: &impl Debug) {
        let text = format!("{value:?}\n{value:#?}\n");
        self.0.lock().unwrap().extend(text.into_bytes());
    }

    /// All of it, and begins anew.
    pub fn taken(&self) -> String {
        String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap()
    }
}

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
