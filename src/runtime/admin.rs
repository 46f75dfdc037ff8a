//! The admin port: metrics and health over HTTP, served by the control executor.
use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use super::control_thread::Control;

pub(super) fn serve(_control: Rc<RefCell<Control>>, _listener: std::net::TcpListener) -> io::Result<()> {
    Ok(())
}
