import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.avro.AvroRuntimeException;
import org.apache.avro.Schema;
import org.apache.avro.SchemaCompatibility;

/**
 * Reads pairs of schemas, a line each (a JSON array of two texts: reader, writer), and writes what Apache Avro finds: a
 * JSON array of [type, location, message], a text for an exception, or null for a schema that it does not take.
 */
public class JavaCompatibility {
  public static void main(String[] arguments) throws Exception {
    ObjectMapper json = new ObjectMapper();
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      String[] pair = json.readValue(line, String[].class);
      out.println(json.writeValueAsString(compare(pair[0], pair[1])));
    }
    out.flush();
  }

  private static Object compare(String reader, String writer) {
    Schema read;
    Schema written;
    try {
      read = new Schema.Parser().parse(reader);
      written = new Schema.Parser().parse(writer);
    } catch (AvroRuntimeException invalid) {
      return null;
    }
    List<String[]> found = new ArrayList<>();
    try {
      for (var one : SchemaCompatibility.checkReaderWriterCompatibility(read, written).getResult().getIncompatibilities()) {
        found.add(new String[] {one.getType().name(), one.getLocation(), one.getMessage()});
      }
    } catch (AvroRuntimeException exception) {
      return exception.getMessage();
    }
    return found;
  }
}
