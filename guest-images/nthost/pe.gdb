# Symbols of the PE files for gdb on nthost: gdb -x guest-images/nthost/pe.gdb --args nthost ... ; then: break-in IMAGE FUNCTION, run.
set pagination off
set confirm off
set breakpoint pending on
handle SIGSEGV SIGBUS nostop noprint pass
python
import gdb
wanted = []
images = []

class BreakIn(gdb.Command):
    """break-in IMAGE FUNCTION: stop at a function of a PE file, as soon as nthost has loaded it."""
    def __init__(self): super().__init__("break-in", gdb.COMMAND_BREAKPOINTS)
    def invoke(self, text, tty):
        image, function = text.split()
        wanted.append((image, function))

class PeStack(gdb.Command):
    """pe-stack [WORDS]: what looks like return addresses into PE files on the stack, innermost first. PE code keeps no frame
    pointers, so some may be left over from earlier calls; nthost's frames between them are left out."""
    def __init__(self): super().__init__("pe-stack", gdb.COMMAND_STACK)
    def invoke(self, text, tty):
        sp = int(gdb.parse_and_eval("$rsp"))
        for i in range(int(text or 1000)):
            try: value = int.from_bytes(gdb.selected_inferior().read_memory(sp + 8 * i, 8).tobytes(), "little")
            except gdb.MemoryError: return
            if not any(base <= value < base + 0x2000000 for base in images): continue
            symbol = gdb.execute("info symbol %#x" % value, to_string=True).split(" in section .text")
            if len(symbol) == 2 and " + " in symbol[0]: print("%#x %s" % (value, symbol[0]))

class ImageLoaded(gdb.Breakpoint):
    def __init__(self): super().__init__("nthost_image_loaded", internal=True)
    def stop(self):
        frame = gdb.selected_frame()
        path = frame.read_var("path").string()
        offset = int(frame.read_var("base")) - int(frame.read_var("preferred"))
        gdb.execute("add-symbol-file %s -o %d" % (path, offset), to_string=True)
        images.append(int(frame.read_var("base")))
        print("loaded %s at %#x" % (path, int(frame.read_var("base"))))
        for image, function in wanted:
            # By the processor's registers: PE code lies in shared memory, which is better not patched. At most four.
            if path.endswith(image): gdb.Breakpoint(function, type=gdb.BP_HARDWARE_BREAKPOINT)
        return False

BreakIn()
PeStack()
ImageLoaded()
end
