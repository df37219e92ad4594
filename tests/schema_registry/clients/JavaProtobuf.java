import com.google.protobuf.DescriptorProtos.FileDescriptorProto;
import com.google.protobuf.DescriptorProtos;
import com.google.protobuf.Descriptors.FileDescriptor;
import com.google.protobuf.DynamicMessage;
import com.google.protobuf.TextFormat;
import com.google.protobuf.TimestampProto;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;

/** Arguments: a message's type, its bytes, then NAME=DESCRIPTOR of each file. Prints the message and its bytes again. */
public class JavaProtobuf {
    public static void main(String[] args) throws Exception {
        Map<String, FileDescriptor> known = new HashMap<>();
        known.put("google/protobuf/timestamp.proto", TimestampProto.getDescriptor());
        known.put("google/protobuf/descriptor.proto", DescriptorProtos.getDescriptor());
        FileDescriptor last = null;
        for (int at = 2; at < args.length; at++) {
            String[] file = args[at].split("=", 2);
            FileDescriptorProto proto =
                FileDescriptorProto.parseFrom(decoded(file[1])).toBuilder().setName(file[0]).build();
            FileDescriptor[] imports = proto.getDependencyList().stream().map(known::get).toArray(FileDescriptor[]::new);
            last = FileDescriptor.buildFrom(proto, imports);
            known.put(file[0], last);
        }
        DynamicMessage message = DynamicMessage.parseFrom(last.findMessageTypeByName(args[0]), decoded(args[1]));
        System.out.println(TextFormat.printer().emittingSingleLine(true).printToString(message).trim());
        System.out.println(Base64.getEncoder().encodeToString(message.toByteArray()));
    }

    private static byte[] decoded(String text) {
        return Base64.getDecoder().decode(text);
    }
}
