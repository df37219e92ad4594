import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs the main classes of Kafka's tools one after another in one JVM, because starting a JVM for each costs more than
 * the tool's own work. Requests come on standard input, answers leave on standard output; the tools get streams of their own.
 *
 * <p>A request is a count and so many strings (length, UTF-8): the main class, what the tool reads from its standard input,
 * the arguments. An answer is the exit code, the tool's standard output and its standard error.
 */
public final class ToolServer {
    private static final class Exited extends Error {
        Exited() {
            super("", null, false, false);
        }

        @Override
        public String toString() {
            return ""; // what tools that catch Throwable print of it
        }
    }

    /** Some tools keep System.out from when their class was loaded, so it must stay the same object. */
    private static final class Switch extends OutputStream {
        ByteArrayOutputStream to = new ByteArrayOutputStream();

        @Override
        public synchronized void write(int b) {
            to.write(b);
        }

        @Override
        public synchronized void write(byte[] bytes, int offset, int length) {
            to.write(bytes, offset, length);
        }

        synchronized byte[] take() {
            byte[] taken = to.toByteArray();
            to = new ByteArrayOutputStream();
            return taken;
        }
    }

    private static final class Input extends InputStream {
        volatile InputStream from = InputStream.nullInputStream();

        @Override
        public int read() throws IOException {
            return from.read();
        }

        @Override
        public int read(byte[] bytes, int offset, int length) throws IOException {
            return from.read(bytes, offset, length);
        }

        @Override
        public int available() throws IOException {
            return from.available();
        }
    }

    private static final List<Runnable> hooks = new ArrayList<>();
    private static volatile Integer exitCode;

    public static void main(String[] ignored) throws Exception {
        DataInputStream requests = new DataInputStream(System.in);
        DataOutputStream answers = new DataOutputStream(System.out);
        Input in = new Input();
        Switch out = new Switch();
        Switch err = new Switch();
        System.setIn(in);
        System.setOut(new PrintStream(out, true, "UTF-8"));
        System.setErr(new PrintStream(err, true, "UTF-8"));
        Exit.setExitProcedure((code, message) -> exit(code));
        Exit.setHaltProcedure((code, message) -> exit(code));
        Exit.setShutdownHookAdder((name, hook) -> {
            synchronized (hooks) {
                hooks.add(hook);
            }
        });
        while (true) {
            String[] request;
            try {
                request = new String[requests.readInt()];
            } catch (EOFException end) {
                Runtime.getRuntime().halt(0); // a tool may have left threads behind
                return;
            }
            for (int i = 0; i < request.length; i++) {
                request[i] = new String(requests.readNBytes(requests.readInt()), "UTF-8");
            }
            in.from = new ByteArrayInputStream(request[1].getBytes("UTF-8"));
            int code = run(request[0], List.of(request).subList(2, request.length).toArray(new String[0]));
            System.out.flush();
            System.err.flush();
            answers.writeInt(code);
            for (byte[] bytes : List.of(out.take(), err.take())) {
                answers.writeInt(bytes.length);
                answers.write(bytes);
            }
            answers.flush();
        }
    }

    private static int run(String mainClass, String[] arguments) {
        exitCode = null;
        try {
            Class.forName(mainClass).getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (InvocationTargetException thrown) {
            if (exitCode == null) {
                thrown.getCause().printStackTrace();
                exitCode = 1;
            }
        } catch (ReflectiveOperationException missing) {
            missing.printStackTrace();
            exitCode = 127;
        }
        List<Runnable> atExit;
        synchronized (hooks) {
            atExit = new ArrayList<>(hooks);
            hooks.clear();
        }
        atExit.forEach(Runnable::run);
        return exitCode == null ? 0 : exitCode;
    }

    /** The first code counts: tools that catch Throwable take our Error for a failure and exit a second time. */
    private static void exit(int code) {
        if (exitCode == null) {
            exitCode = code;
        }
        throw new Exited();
    }
}
