// The first lines of a widget that may start late: call `listen(model)` when it starts.
function listen(model) {
  let itself;  // a listener receives the model itself; anywidget passes a part of it
  const heard = one => { itself = one; };
  model.on("change:_started", heard);
  model.set("_started", Math.random());
  model.off("change:_started", heard);
  const direct = Object.getPrototypeOf(itself.constructor.prototype)._handle_comm_msg;
  if (direct && itself.comm) itself.comm.on_msg(message => direct.call(itself, message));
  model.save_changes();
}
